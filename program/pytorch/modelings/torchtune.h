// Llama, Mistral and Qwen2 as torchtune 0.6.1 builds them (torchtune/modules), on counted tensors.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/pytorch/modelings/llama_graph.h"
#include "program/pytorch/modelings/modeling.h"

namespace vramfit::eager {

class Torchtune final : public Model {
 public:
  /// Throws NotModelled for a graph that none of these builders makes. Windows are no part of what they build.
  Torchtune(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return llama_.blocks.size(); }

  /// The tables of rotations.
  void load() override;
  Tensor embed(const Tensor& ids) override;
  CheckpointBody block(std::size_t number) override {
    return [this, number](const Tensor& x) { return run(llama_.blocks.at(number), x); };
  }
  /// Without the output layer, which the loop runs on parts of what this gives (chunked_output).
  Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) override;
  OutputLayer output_layer() const override {
    return {.weights = llama_.output, .inputs = llama_.sizes.hidden, .outputs = llama_.sizes.vocabulary};
  }
  /// Lets go of the last block's result, which forward() names until it returns.
  void leave() override { hidden_ = {}; }

 private:
  void require_builder(const Job& job) const;
  void require_adapters(const Job& job) const;
  bool has_table_of_each_layer(const Graph& graph, const Job& job) const;
  struct Table {
    Tensor frequencies, values;
  };
  void make(Table& table);
  Tensor linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs);
  Tensor run(const LlamaBlock& block, const Tensor& x);
  Tensor norm(const Tensor& x, int weight);
  Tensor attention(const LlamaBlock& block, const Tensor& x);
  Tensor feed_forward(const LlamaBlock& block, const Tensor& x);
  Tensor rotated(const Tensor& x, const Tensor& table);
  Tensor rotated_by_halves(const Tensor& x, const Tensor& table);

  Torch& torch_;
  Dtype compute_;
  bool may_be_cudnn_, drops_, is_quantized_;
  std::int64_t positions_;  // of the tables of rotations
  LlamaGraph llama_;
  bool is_qwen_;
  std::vector<Table> tables_;  // of all layers, or of each one
  Tensor hidden_;
};

}  // namespace vramfit::eager
