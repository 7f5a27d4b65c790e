// Sizes of an attention call, and its implementations other than the CPU's own loops.
#pragma once

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

struct AttentionSizes {
  explicit AttentionSizes(const OpCall& call)
      : batch(call.context.shape.batch),
        sequence(call.context.shape.sequence),
        heads(attributes(call).heads),
        kv_heads(attributes(call).kv_heads),
        head_dim(attributes(call).head_dim),
        window(attributes(call).window),
        causal(attributes(call).causal),
        scale(static_cast<float>(attributes(call).scale)),
        softcap(static_cast<float>(attributes(call).softcap)) {}
  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t batch, sequence, heads, kv_heads, head_dim;
  std::int64_t window;  // keys a query sees, itself included; 0: all before it
  bool causal;
  float scale, softcap;
};

/// Composed of batched products and elementwise calls; any device.
void attention_forward_math(OpCall& call);
void attention_backward_math(OpCall& call);

/// Flash, memory-efficient or composed attention, as the rule chooses them.
void attention_forward_cuda(OpCall& call);
void attention_backward_cuda(OpCall& call);

}  // namespace vramfit::kernels
