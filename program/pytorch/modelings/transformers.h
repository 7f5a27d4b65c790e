// Llama and models of its form, such as Mistral, Qwen2 and Qwen3, as transformers 5.23 writes them
// (models/llama/modeling_llama.py), on counted tensors.
#pragma once

#include <string>
#include <vector>

#include "program/pytorch/modelings/llama_graph.h"
#include "program/pytorch/modelings/modeling.h"

namespace vramfit::eager {

class Transformers final : public Model {
 public:
  /// Throws NotModelled for a graph that isn't a Llama's: other ops, windows.
  Transformers(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return llama_.blocks.size(); }
  /// The inverse frequencies and the copy that LlamaRotaryEmbedding keeps.
  void load() override;
  Tensor embed(const Tensor& ids) override;
  /// Positions, what the mask is looked at with, and the tables of cosines and sines.
  void prepare(const Tensor& mask, const Tensor& items) override;
  CheckpointBody block(std::size_t number) override;
  Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) override;
  void leave() override { hidden_ = {}; }

 private:
  /// What all layers are passed beside their input.
  struct Positions {
    Tensor ids, cosines, sines, items;
  };

  Tensor run(const LlamaBlock& layer, const Tensor& x, const Positions& positions);
  Tensor linear(const Tensor& x, const LlamaLinear& by, std::int64_t inputs, std::int64_t outputs);
  Tensor linear_4bit(const Tensor& x, const LlamaLinear& by, std::int64_t inputs, std::int64_t outputs);
  /// What LoRA adds to a linear's output.
  Tensor adapter(const Tensor& x, const LlamaLinear& by, std::int64_t inputs, std::int64_t outputs);
  /// Of rows of `width`.
  Tensor norm(const Tensor& x, int weight, std::int64_t width);
  Tensor rotated(const Tensor& x, const Positions& positions);
  Tensor attention(const LlamaBlock& layer, const Tensor& x, const Positions& positions);
  Tensor feed_forward(const LlamaBlock& layer, const Tensor& x);
  Tensor constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what);
  void look_at_mask(const Tensor& mask);

  Torch& torch_;
  Dtype adapter_dtype_, compute_dtype_;
  bool drops_;                // what adapters read
  bool may_be_cudnn_;         // attention, where PyTorch prefers it
  bool has_input_gradients_;  // where layers are checkpointed over a frozen embedding (enable_input_require_grads)
  LlamaGraph llama_;
  Dtype hidden_dtype_;
  Tensor frequencies_, original_frequencies_;
  Positions positions_;
  Tensor embedded_, hidden_;  // locals of LlamaModel.forward and LlamaForCausalLM.forward
};

}  // namespace vramfit::eager
