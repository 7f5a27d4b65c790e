// Llama and models of its form, such as Mistral, Qwen, Phi-3, Gemma, Granite and Mixtral, as transformers 5.23 writes
// them (models/llama/modeling_llama.py), on counted tensors.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "program/pytorch/calls/axolotl_lora.h"
#include "program/pytorch/calls/liger.h"
#include "program/pytorch/modelings/liger.h"
#include "program/pytorch/modelings/llama_graph.h"
#include "program/pytorch/modelings/modeling.h"
#include "program/pytorch/modelings/peft_adapters.h"

namespace vramfit::eager {

/// Whether rows of a norm are heads that don't lie one after the other, and their gradients.
struct HeadsApart {
  bool input = false, gradient = false;
};

class Transformers final : public Model {
 public:
  /// Throws NotModelled for a graph of another form.
  Transformers(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return llama_.blocks.size(); }
  /// The embedding's scale, and the inverse frequencies with the copy that LlamaRotaryEmbedding keeps.
  void load() override;
  Tensor embed(const Tensor& ids) override;
  /// Granite's embedding_multiplier (Gemma's scale is in the module), positions, what the mask is looked at with, and
  /// the tables of cosines and sines.
  void convert_buffers(Dtype dtype) override;
  Tensor prepare(Tensor embedded, const Tensor& mask, const Tensor& items) override;
  void set_documents(const PackedDocuments& documents) override { documents_ = documents; }
  CheckpointBody block(std::size_t number) override;
  Submodule layer(std::size_t number) const override {
    return {.name = llama_.blocks.at(number).name, .parameters = {}};
  }
  Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) override;
  Tensor finish(Tensor logits) override;
  OutputLayer output_layer() const override {
    return {.weights = llama_.output, .inputs = llama_.sizes.hidden, .outputs = llama_.sizes.vocabulary};
  }
  LossKernel loss_kernel() const override;
  void leave() override { hidden_ = {}; }
  void use_adapters(bool are_used) override { adapters_.use(are_used); }

 private:
  struct Rotations {
    Tensor cosines, sines;
  };
  /// What a layer is passed beside its input.
  struct Positions {
    Tensor ids, items;
    Rotations rotations;
    Tensor mask;  // empty: none
    PackedDocuments documents;
  };

  void require_code(const Job& job) const;
  Tensor after(const LlamaBlock& l, const char* name, Tensor y);
  Tensor run(const LlamaBlock& layer, const Tensor& x, const Positions& positions);
  Tensor linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs);
  Tensor multiplied_embedding(Tensor embedded);
  /// Of rows of `width`.
  Tensor norm(const Tensor& x, int weight, std::int64_t width, HeadsApart apart = {});
  Tensor normed(const Tensor& x, int weight, std::int64_t width, HeadsApart apart);
  Tensor norm_with_one(const Tensor& x, int weight, std::int64_t width);
  Tensor plain_norm(const Tensor& x, int weight, std::int64_t width);
  Submodule submodule(const std::vector<int>& parameters = {}) const;
  Tensor rotated(const Tensor& x, const Rotations& rotations);
  Tensor rotated_by_halves(const Tensor& x, const Rotations& rotations);
  /// How q, k and v of all heads lie in memory; Python sees them with heads first in any case.
  enum class Layout { tokens_first, heads_first };
  struct QueriesKeysValues {
    Tensor q, k, v;
    Layout layout = Layout::tokens_first;  // of q and k
  };
  std::array<Tensor, 3> projected_together(const LlamaBlock& layer, const Tensor& x);
  QueriesKeysValues projected(const LlamaBlock& layer, const Tensor& x, bool is_masked);
  QueriesKeysValues sliced(const LlamaBlock& layer, const Tensor& x, bool is_masked);
  void rotate(QueriesKeysValues& qkv, const Rotations& rotations);
  void rotate_first_dims(QueriesKeysValues& qkv, const Rotations& rotations);
  void rotate_in_place(QueriesKeysValues& qkv, const Rotations& rotations, bool is_masked);
  struct Heads {
    Tensor x;
    Layout layout = Layout::tokens_first;
  };
  Heads repeated(const Tensor& x, Layout layout);
  Tensor probabilities(const Tensor& scores, Dtype dtype);
  Tensor probabilities_beside_sinks(const Tensor& scores, int sinks, Dtype dtype, std::vector<Tensor>& locals);
  struct Attended {
    Tensor out, probabilities;  // the second one empty where a kernel computes both
  };
  Attended attended_eagerly(const LlamaBlock& layer, const QueriesKeysValues& qkv, const Tensor& mask);
  AttentionShape shape_of(Layout layout, bool is_masked) const;
  AttentionKernel kernel_of(Dtype dtype, bool is_masked) const;
  bool has_values_heads_first(const Tensor& v, bool is_masked) const;
  Tensor attended(const QueriesKeysValues& qkv, const Tensor& mask);
  Tensor attended_by_flash_attn(const QueriesKeysValues& qkv, const Positions& positions);
  /// With what the layer that calls it keeps until it returns.
  Attended attention(const LlamaBlock& layer, const Tensor& x, const Positions& positions);
  Tensor activated(const Tensor& x);
  /// By Granite's residual_multiplier.
  Tensor multiplied(const Tensor& x);
  void require_experts(const Job& job) const;
  void require_grouped_products(const Job& job, const LlamaExperts& e) const;
  struct Routed {
    Tensor logits, scores, choices;
  };
  Routed routed(const LlamaExperts& e, const Tensor& x);
  Routed routed_by_logits(const LlamaExperts& e, const Tensor& rows);
  Tensor gated(const Tensor& x);
  Tensor gated_within_limits(const Tensor& x);
  Tensor chosen(const LlamaExperts& e, const Tensor& x, const Routed& routed);
  Tensor mixture(const LlamaExperts& e, const Tensor& x, Tensor& beside);
  /// `beside`: what the layer keeps of its modules' further results.
  Tensor feed_forward(const LlamaBlock& layer, const Tensor& x, Tensor& beside);
  Tensor constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what);
  Rotations rotations_of(const Tensor& frequencies);
  void make_masks(const Tensor& given);

  Torch& torch_;
  Adapters adapters_;
  bool may_be_cudnn_;  // attention, where PyTorch prefers it
  bool is_scored_;     // the loss takes hidden states, not logits (TRL)
  LlamaGraph llama_;
  LigerKernels uses_liger_;
  Liger liger_;
  bool is_flash_attn_, is_eager_;  // attention
  bool packs_documents_;
  Dtype hidden_dtype_, scale_dtype_;
  AxolotlParts uses_axolotl_;
  bool makes_all_first_;  // of queries, keys and values, before it shapes any (axolotl)
  LoraKernels lora_kernels_;
  std::vector<Tensor> frequencies_, original_frequencies_;  // by table
  Tensor embedding_scale_;
  Tensor ids_, items_;
  Tensor mask_, window_mask_;  // empty: none
  PackedDocuments documents_;
  std::vector<Rotations> rotations_;  // by table
  Tensor embedded_, hidden_;          // locals of LlamaModel.forward and LlamaForCausalLM.forward
};

}  // namespace vramfit::eager
