#include <algorithm>

#include "job/cluster/reduce_scratch.h"
#include "program/ops/rules.h"

namespace vramfit {

namespace {

// Over more rows than this, where narrow rows would leave multiprocessors idle, LibTorch 2.11 sums the weight's
// gradient in two passes: blocks of 32 columns write partial rows, at most 32768 blocks, and a sum over them follows
// (ATen/native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel).
constexpr std::int64_t kTwoPassRows = 64 * 1024, kBlockColumns = 32, kBlockRows = 32, kMostBlocks = 32 * 1024;

std::int64_t partial_rows(std::int64_t rows, std::int64_t width, const Device& device) {
  if (rows <= kTwoPassRows || width / kBlockColumns >= device.sm_count / 2) return 0;
  return std::min(ceil_div(rows, kBlockRows), kMostBlocks / ceil_div(width, kBlockColumns));
}

// Blocks of the own kernel's backward: two have room on a multiprocessor, and each has several rows (from four rows
// on), so that its sums take no more than half of what x's gradient takes in 16 bits.
constexpr std::int64_t kBlocksOfMultiprocessor = 2, kRowsOfBlock = 4;

// Gradients go to their places; the weight's is summed over blocks first, unless it is the only one.
std::vector<Step> own_backward(const OpContext& context, const Needs& needs, std::int64_t width) {
  if (!wants_input(needs, 0) || !wants_parameter(needs, 0)) return {};
  const std::int64_t partials = norm_partial_rows(context.output_elements(1), context.device);
  return {temporary("partial_rows", checked_mul(partials, width), Dtype::f32)};
}

// The call allocates those results that are needed; they are copied or added into the tape's buffers.
std::vector<Step> cuda_backward(const OpContext& context, const Needs& needs, std::int64_t width) {
  std::vector<Step> steps;
  if (wants_input(needs, 0)) {
    steps.push_back(temporary("input_gradient", context.input_elements(0), context.compute()));
  }
  if (!wants_parameter(needs, 0)) return steps;
  steps.push_back(temporary("weight_gradient", width, context.compute()));
  const std::int64_t partials = partial_rows(context.output_elements(1), width, context.device);
  if (partials == 0) return steps;
  steps.push_back(temporary("partial_rows", checked_mul(partials, width), context.compute()));
  steps.push_back(temporary("weight_gradient_sum", width, context.compute()));
  const ReduceScratch scratch = sum_over_rows(partials, width, context.device);
  if (scratch.partials == Bytes{}) return steps;
  steps.push_back(temporary("reduce_buffer", scratch.partials.n, Dtype::u8));
  steps.push_back(temporary("semaphores", scratch.counters.n, Dtype::u8));
  return steps;
}

/// y = x * rstd * weight (or weight + 1). Backward reads x and one fp32 rstd per row: the normalized row is
/// recomputed from them.
///
/// CPU: own loops that sum the weight's gradient in place, without further memory. CUDA: at::_fused_rms_norm,
/// which allocates y and rstd, in this order. Own kernels write x's gradient where it belongs: over that of y, or added
/// to what is there.
Rule rule_of_rms_norm(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.saved = {input(0), output(1)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  if (!is_cuda(context)) return rule;
  const std::int64_t width = context.input_elements(0) / context.output_elements(1);
  if (uses_own_kernel(context)) {
    rule.gradients = {{GradientSource::From::output_gradient, 0}};
    rule.backward = own_backward(context, needs, width);
    return rule;
  }
  rule.outputs_inside = true;
  if (context.op.attributes.weight_plus_one) {
    rule.forward.push_back(temporary("weight_plus_one", width, context.compute()));
    rule.backward.push_back(temporary("weight_plus_one", width, context.compute()));
  }
  rule.forward.insert(rule.forward.end(), {output_step(0), output_step(1)});
  const std::vector<Step> backward = cuda_backward(context, needs, width);
  rule.backward.insert(rule.backward.end(), backward.begin(), backward.end());
  return rule;
}

/// CUDA: one fused call reads x and writes y. Backward reads dy and x for dx, and again for the weight's gradient in
/// two launches; both are added to what is there, dx reading two and writing one. Own kernels read dy and x once, and
/// add dx to what is there; the blocks' sums for the weight are written and read.
OpWork work_of_rms_norm(const OpContext& context, const Needs& needs) {
  if (uses_own_kernel(context)) {
    const bool sums_apart = wants_input(needs, 0) && wants_parameter(needs, 0);
    OpWork work = work_of_calls(context, needs, {.passes = 2, .launches = 1},
                                {.passes = wants_input(needs, 0) ? 4.0 : 2.0, .launches = sums_apart ? 2 : 1});
    const std::int64_t width = context.input_elements(0) / context.output_elements(1);
    for (const Step& step : own_backward(context, needs, width)) {
      work.backward.front().bytes += 2 * static_cast<double>(step.bytes.n);
    }
    return work;
  }
  return work_of_calls(context, needs, {.passes = 2, .launches = 1}, {.passes = 8, .launches = 5});
}

/// Of the residual addition and the norm of its sum: both summands are read, the sum and its norm written.
OpWork work_with_addition(const OpContext& context, const Needs& needs) {
  return work_of_calls(context, needs, {.passes = 4, .launches = 1}, {});
}

}  // namespace

std::int64_t norm_partial_rows(std::int64_t rows, const Device& device) {
  const std::int64_t most = kBlocksOfMultiprocessor * std::max<std::int64_t>(device.sm_count, 1);
  return std::clamp<std::int64_t>(rows / kRowsOfBlock, 1, most);
}

const OpRow op_rows::rms_norm{.rule = rule_of_rms_norm,
                              .work = work_of_rms_norm,
                              .has_own_kernel = true,
                              .joins = OpKind::add,
                              .joint = work_with_addition};

}  // namespace vramfit
