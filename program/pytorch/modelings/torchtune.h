// Llama, Mistral, Qwen2, Phi-3, Gemma and Gemma 2 as torchtune 0.6.1 builds them (torchtune/modules), on counted
// tensors.
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
  bool is_gemma() const { return llama_.style.adds_one_to_norms; }
  bool is_gemma2() const { return is_gemma() && llama_.style.has_post_norms; }
  struct Table {
    Tensor frequencies, values;
  };
  void make(Table& table);
  Tensor linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs);
  void load_magnitudes();
  Tensor with_direction(const Tensor& base, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                        std::int64_t outputs);
  Tensor run(const LlamaBlock& block, const Tensor& x);
  Tensor norm(const Tensor& x, int weight);
  Tensor norm_with_one(const Tensor& x, int weight);
  Tensor attention(const LlamaBlock& block, const Tensor& x);
  Tensor capped_attention(const LlamaBlock& block, const Tensor& x);
  Tensor feed_forward(const LlamaBlock& block, const Tensor& x);
  Tensor rotated(const Tensor& x, const Tensor& table);
  Tensor rotated_by_halves(const Tensor& x, const Tensor& table);
  Tensor rotated_in_fp32(const Tensor& x, const Tensor& table);

  Torch& torch_;
  Dtype compute_;
  bool may_be_cudnn_, drops_, is_quantized_, has_magnitudes_;
  std::int64_t positions_;  // of the tables of rotations
  std::int64_t shards_;
  LlamaGraph llama_;
  /// How each pair of a head's numbers is turned: of neighbours, or of halves, by tables that are rounded or not.
  enum class Rotation { neighbours, rounded_halves, halves } rotation_;
  std::vector<Table> tables_;  // of all layers, or of each one
  Tensor hidden_;
};

}  // namespace vramfit::eager
