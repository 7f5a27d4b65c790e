// What llama and the families that follow its plan share: pre-normed blocks of grouped-query attention with rotary
// positions and a gated MLP. A family says how it differs in a DecoderStyle.
#pragma once

#include <string>
#include <vector>

#include "model_specs/graph.h"
#include "model_specs/parameters.h"

namespace vramfit {

struct DecoderStyle {
  bool qk_norm = false;           // a norm over each head of q and k before they are rotated
  bool packed = false;            // qkv_proj and gate_up_proj in one matrix each
  bool weight_plus_one = false;   // norms multiply by 1 + weight
  bool four_norms = false;        // attention's and the MLP's outputs are normed too
  bool scaled_embedding = false;  // times sqrt(hidden_size), which transformers rounds to the weight's dtype
};

/// Names begin with "model." and an untied lm_head follows, unless `spec.architecture` is the class without a head
/// (its name ends in "Model").
std::vector<NamedShape> decoder_parameters(const ModelSpec& spec, const DecoderStyle& style);

Graph decoder_graph(const ModelSpec& spec, const DecoderStyle& style, const LossOptions& loss);

/// The rotary frequencies, which transformers keeps twice (as made, and as scaled now).
std::vector<NamedBuffer> decoder_buffers(const ModelSpec& spec);

/// Whether `spec.architecture` is a class without a head: LlamaModel, BertModel.
bool is_headless(const ModelSpec& spec);

/// Appends tensors with a common prefix, so that a family's list reads like its modules.
class ShapeList {
 public:
  void add(const std::string& name, std::vector<std::int64_t> shape) { items_.push_back({name, std::move(shape)}); }
  /// weight [out, in] and, if asked for, bias [out].
  void linear(const std::string& module, std::int64_t out, std::int64_t in, bool bias);
  /// weight and bias, [features] each.
  void layer_norm(const std::string& module, std::int64_t features);
  std::vector<NamedShape> take() { return std::move(items_); }

 private:
  std::vector<NamedShape> items_;
};

}  // namespace vramfit
