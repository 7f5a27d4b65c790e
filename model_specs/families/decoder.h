// Shared by llama and the families with the same structure: pre-norm blocks of grouped-query attention with rotary
// positions and a gated MLP. A DecoderStyle says how a family differs.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model_specs/config.h"
#include "model_specs/families/families.h"
#include "model_specs/graph.h"
#include "model_specs/parameters.h"

namespace vramfit {

struct DecoderStyle {
  bool qk_norm = false;           // a norm over each head of q and k before they are rotated
  bool packed = false;            // qkv_proj and gate_up_proj in one matrix each
  bool weight_plus_one = false;   // norms multiply by 1 + weight
  bool four_norms = false;        // attention's and the MLP's outputs are normed too
  bool scaled_embedding = false;  // times sqrt(hidden_size), which transformers rounds to the weight's dtype
  bool local_rope = false;        // sliding layers rotate by spec.local_rope
  /// Whether a layer's MLP is spec.moe's mixture of experts; null: none is.
  bool (*is_sparse)(const MoeSpec& moe, std::int64_t layer) = nullptr;
};

/// Names begin with "model." and an untied lm_head follows, unless `spec.architecture` is the class without a head.
std::vector<NamedShape> decoder_parameters(const ModelSpec& spec, const DecoderStyle& style);

/// Of a model whose parameters are `shapes`.
Graph decoder_graph(const std::vector<NamedShape>& shapes, const ModelSpec& spec, const DecoderStyle& style,
                    const LossOptions& loss);

/// What LlamaConfig has, with its defaults (llama, granite).
void read_llama_config(ConfigReader& config, ModelSpec& spec);

/// Windows of qwen2 and qwen3: none unless use_sliding_window, then on layers from max_window_layers on, or as
/// layer_types says.
void read_optional_windows(ConfigReader& config, ModelSpec& spec);

/// A `sliding_window` (null: none) on every layer (mistral, phi3).
void read_window_everywhere(ConfigReader& config, ModelSpec& spec, std::int64_t omitted);

/// A `sliding_window` on the layers that layer_types names, or else on all but every `pattern`-th (gemma2: 2, gemma3:
/// 6).
void read_alternating_windows(ConfigReader& config, ModelSpec& spec, std::int64_t pattern);

/// The rotary frequencies, which transformers keeps twice (as made, and as scaled now).
std::vector<NamedBuffer> decoder_buffers(const ModelSpec& spec);

/// Those and gemma's embed_scale.
std::vector<NamedBuffer> scaled_decoder_buffers(const ModelSpec& spec);

template <const DecoderStyle& kStyle>
std::vector<NamedShape> parameters_of_style(const ModelSpec& spec) {
  return decoder_parameters(spec, kStyle);
}

/// The table row of a family with this structure; `classes` and `parse` as in Family. `kParameters`: where they aren't
/// all the style's.
template <const DecoderStyle& kStyle,
          std::vector<NamedShape> (*kParameters)(const ModelSpec&) = parameters_of_style<kStyle>>
Family decoder_family(std::string_view model_type, const std::vector<std::string_view>& classes,
                      void (*parse)(ConfigReader&, ModelSpec&),
                      std::vector<NamedBuffer> (*buffers)(const ModelSpec&) = decoder_buffers) {
  return {.model_type = model_type,
          .classes = classes,
          .parse = parse,
          .parameters = kParameters,
          .buffers = buffers,
          .graph = [](const ModelSpec& spec, const LossOptions& loss) {
            return decoder_graph(kParameters(spec), spec, kStyle, loss);
          }};
}

/// gemma's use_bidirectional_attention is counted, but has no graph.
void refuse_bidirectional(ConfigReader& config, ModelSpec& spec);

/// Whether `spec.architecture` is its family's class without a head: LlamaModel, BertModel.
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
