// Llama as written in torchtitan in December 2024, on counted tensors: which locals its Python code holds, and for how
// long.
#pragma once

#include <string>
#include <vector>

#include "program/pytorch/modelings/modeling.h"

namespace vramfit::eager {

/// One decoder block: parameters by index in the graph.
struct TitanBlock {
  std::string name;
  int wq = -1, wk = -1, wv = -1, wo = -1, w1 = -1, w2 = -1, w3 = -1, attention_norm = -1, ffn_norm = -1;
};

struct TitanSizes {
  std::int64_t batch = 0, sequence = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
};

class Torchtitan final : public Model {
 public:
  /// Throws NotModelled for a graph that isn't a Llama's: other ops, biases, tied or scaled embeddings, windows.
  Torchtitan(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return blocks_.size(); }

  /// The table of rotations, made in place of an empty one as on any device.
  void load() override;
  Tensor embed(const Tensor& ids) override;
  CheckpointBody block(std::size_t number) override {
    return [this, number](const Tensor& x) { return run(blocks_.at(number), x); };
  }
  Tensor head(Tensor h) override;

 private:
  Tensor run(const TitanBlock& block, const Tensor& x);
  Tensor norm(const Tensor& x, int weight);
  Tensor attention(const TitanBlock& block, const Tensor& x);
  Tensor feed_forward(const TitanBlock& block, const Tensor& x);
  std::pair<Tensor, Tensor> rotated(const Tensor& q, const Tensor& k);

  Torch& torch_;
  Dtype compute_;
  TitanSizes sizes_;
  std::vector<TitanBlock> blocks_;
  int embedding_ = -1, norm_ = -1, output_ = -1;
  Tensor turns_;
};

}  // namespace vramfit::eager
