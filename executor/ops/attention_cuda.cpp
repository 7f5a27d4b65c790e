#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/sum.h>

#include <array>
#include <optional>
#include <tuple>

#include "executor/ops/attention_torch.h"
#include "program/ops/attention.h"

namespace vramfit::kernels {

namespace {

at::Tensor heads_of(const at::Tensor& t, const AttentionSizes& s, std::int64_t heads) {
  return t.view({s.batch, s.sequence, heads, s.head_dim});
}

at::Tensor rows_of(const at::Tensor& t, const AttentionSizes& s) { return t.view({s.batch * s.sequence, -1}); }

/// Flash attention counts the keys left of the query itself.
std::optional<std::int64_t> left_keys(const AttentionSizes& s) {
  return s.window > 0 ? std::optional<std::int64_t>(s.window - 1) : std::nullopt;
}

std::optional<std::int64_t> right_keys(const AttentionSizes& s) {
  return s.window > 0 ? std::optional<std::int64_t>(0) : std::nullopt;
}

void forward_flash(OpCall& call, const AttentionSizes& s) {
  const auto results = at::_flash_attention_forward(
      heads_of(call.inputs[0], s, s.heads), heads_of(call.inputs[1], s, s.kv_heads),
      heads_of(call.inputs[2], s, s.kv_heads), std::nullopt, std::nullopt, s.sequence, s.sequence, 0.0, s.causal, false,
      attributes(call).scale, left_keys(s), right_keys(s));
  call.outputs[0] = rows_of(std::get<0>(results), s);
  call.outputs[1] = std::get<1>(results).view({s.batch * s.heads, s.sequence});
}

/// Asks LibTorch for its deterministic kernels while it lives, where the job does. Not for the whole run: other ops,
/// deterministic as they are called here, would take detours with temporaries of unknown size.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool on)
      : algorithms_(at::globalContext().deterministicAlgorithms()),
        fills_(at::globalContext().deterministicFillUninitializedMemory()) {
    if (!on) return;
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);  // the kernels write all they are given
  }
  ~DeterministicScope() {
    at::globalContext().setDeterministicAlgorithms(algorithms_, false);
    at::globalContext().setDeterministicFillUninitializedMemory(fills_);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;
  DeterministicScope(DeterministicScope&&) = delete;
  DeterministicScope& operator=(DeterministicScope&&) = delete;

 private:
  bool algorithms_, fills_;
};

// Without dropout the random state is not read.
void backward_flash(OpCall& call, const AttentionSizes& s) {
  const DeterministicScope scope(call.context.deterministic);
  const auto gradients = at::_flash_attention_backward(
      heads_of(*call.output_gradient, s, s.heads), heads_of(call.inputs[0], s, s.heads),
      heads_of(call.inputs[1], s, s.kv_heads), heads_of(call.inputs[2], s, s.kv_heads),
      heads_of(call.outputs[0], s, s.heads), call.outputs[1].view({s.batch, s.heads, s.sequence}), {}, {}, s.sequence,
      s.sequence, 0.0, s.causal, {}, {}, attributes(call).scale, left_keys(s), right_keys(s));
  deliver_gradient(call, 0, rows_of(std::get<0>(gradients), s));
  deliver_gradient(call, 1, rows_of(std::get<1>(gradients), s));
  deliver_gradient(call, 2, rows_of(std::get<2>(gradients), s));
}

constexpr std::int64_t kNoMask = 0, kCausalFromTopLeft = 1;  // xFormers' custom mask types

/// Keys or values repeated for every query head of their group, [B, S, heads, D].
at::Tensor expanded(OpCall& call, const AttentionSizes& s, std::size_t input, const char* name) {
  if (s.heads == s.kv_heads) return heads_of(call.inputs[input], s, s.heads);
  at::Tensor copy = call.temporaries.allocate(name, {s.batch, s.sequence, s.heads, s.head_dim}, call.context.compute());
  copy.view({s.batch, s.sequence, s.kv_heads, s.group(), s.head_dim})
      .copy_(heads_of(call.inputs[input], s, s.kv_heads).unsqueeze(3));
  return copy;
}

std::optional<std::int64_t> window_of(const AttentionSizes& s) {
  return s.window > 0 ? std::optional<std::int64_t>(s.window) : std::nullopt;
}

void forward_efficient(OpCall& call, const AttentionSizes& s) {
  const at::Tensor k = expanded(call, s, 1, "k_expanded"), v = expanded(call, s, 2, "v_expanded");
  const auto results = at::_efficient_attention_forward(
      heads_of(call.inputs[0], s, s.heads), k, v, std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
      0.0, s.causal ? kCausalFromTopLeft : kNoMask, true, attributes(call).scale, std::nullopt, window_of(s));
  call.outputs[0] = rows_of(std::get<0>(results), s);
  call.outputs[1] = std::get<1>(results).view({s.batch * s.heads, -1});
}

/// The gradient of a repeated key or value: the sum over the query heads of its group.
void deliver_grouped(OpCall& call, const AttentionSizes& s, std::size_t input, const at::Tensor& gradient) {
  if (s.heads == s.kv_heads) return deliver_gradient(call, input, rows_of(gradient, s));
  if (!wants_input(call, input)) return;
  const at::Tensor groups = gradient.view({s.batch, s.sequence, s.kv_heads, s.group(), s.head_dim});
  at::Tensor target = heads_of(call.input_gradients[input], s, s.kv_heads);
  if (adds_input(call, input)) {
    for (std::int64_t g = 0; g < s.group(); ++g) target.add_(groups.select(3, g));
  } else {
    at::sum_out(target, groups, 3);
  }
}

void backward_efficient(OpCall& call, const AttentionSizes& s) {
  const DeterministicScope scope(call.context.deterministic);
  const at::Tensor k = expanded(call, s, 1, "k_expanded"), v = expanded(call, s, 2, "v_expanded");
  const auto gradients = at::_efficient_attention_backward(
      heads_of(*call.output_gradient, s, s.heads), heads_of(call.inputs[0], s, s.heads), k, v, std::nullopt,
      heads_of(call.outputs[0], s, s.heads), std::nullopt, std::nullopt, s.sequence, s.sequence,
      call.outputs[1].view({s.batch, s.heads, -1}), 0.0, {}, {}, s.causal ? kCausalFromTopLeft : kNoMask, false,
      attributes(call).scale, std::nullopt, window_of(s));
  deliver_gradient(call, 0, rows_of(std::get<0>(gradients), s));
  deliver_grouped(call, s, 1, std::get<1>(gradients));
  deliver_grouped(call, s, 2, std::get<2>(gradients));
}

}  // namespace

void attention_forward_cuda(OpCall& call) {
  const AttentionSizes s(call);
  const AttentionPath path = attention_path(call.context);
  if (path == AttentionPath::math) return attention_forward_math(call);
  path == AttentionPath::flash ? forward_flash(call, s) : forward_efficient(call, s);
}

void attention_backward_cuda(OpCall& call) {
  const AttentionSizes s(call);
  const AttentionPath path = attention_path(call.context);
  if (path == AttentionPath::math) return attention_backward_math(call);
  path == AttentionPath::flash ? backward_flash(call, s) : backward_efficient(call, s);
}

}  // namespace vramfit::kernels
