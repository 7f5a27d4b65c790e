// Shared by families with experts or without a graph: llama's structure of embedding, numbered layers and norm, with
// each family's own attention and MLP. Experts are fused as in transformers 5: one tensor for all experts of a layer.
#pragma once

#include <string>
#include <vector>

#include "model_specs/families/decoder.h"

namespace vramfit {

struct LayerPlan {
  /// `layer` is "model.layers.3."
  void (*attention)(ShapeList& list, const ModelSpec& spec, const std::string& layer);
  void (*mlp)(ShapeList& list, const ModelSpec& spec, const std::string& layer, std::int64_t index);
};

/// embed_tokens, each layer's attention, MLP and two norms, norm, and an untied lm_head unless the class has no head.
std::vector<NamedShape> layered_parameters(const ModelSpec& spec, const LayerPlan& plan);

/// The loss that balances experts (output_router_logits) is counted, but has no graph.
void refuse_router_loss(ConfigReader& config, ModelSpec& spec);

/// q_proj, k_proj, v_proj and o_proj of grouped-query attention.
void grouped_attention_shapes(ShapeList& list, const ModelSpec& spec, const std::string& layer);

/// gate_proj, up_proj and down_proj; `module` ends in a dot.
void gated_mlp_shapes(ShapeList& list, const ModelSpec& spec, const std::string& module, std::int64_t intermediate);

/// experts.gate_up_proj [experts, 2 * intermediate, hidden] and experts.down_proj [experts, hidden, intermediate].
void expert_shapes(ShapeList& list, const ModelSpec& spec, const std::string& module);

}  // namespace vramfit
