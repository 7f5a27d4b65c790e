// Llama as written in torchtitan in December 2024, and in its release 0.2, on counted tensors: which locals its Python
// code holds, and for how long.
#pragma once

#include <string>
#include <vector>

#include "program/pytorch/modelings/llama_graph.h"
#include "program/pytorch/modelings/modeling.h"

namespace vramfit::eager {

class Torchtitan final : public Model {
 public:
  /// Throws NotModelled for a graph that isn't a Llama's: other ops, biases, tied or scaled embeddings, windows.
  Torchtitan(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return llama_.blocks.size(); }

  /// The table of rotations, made in place of an empty one as on any device.
  void load() override;
  Tensor embed(const Tensor& ids) override;
  CheckpointBody block(std::size_t number) override {
    return [this, number](const Tensor& x) { return run(llama_.blocks.at(number), x); };
  }
  Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) override;

 private:
  void require_llama(const Job& job) const;
  Tensor run(const LlamaBlock& block, const Tensor& x);
  Tensor norm(const Tensor& x, int weight);
  Tensor attention(const LlamaBlock& block, const Tensor& x);
  Tensor feed_forward(const LlamaBlock& block, const Tensor& x);
  std::pair<Tensor, Tensor> rotated(const Tensor& q, const Tensor& k);

  Torch& torch_;
  Dtype compute_;
  bool is_of_2024_, may_be_cudnn_;
  LlamaGraph llama_;
  Tensor turns_;
};

}  // namespace vramfit::eager
