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
/// which allocates y and rstd, in this order.
Rule rule_of_rms_norm(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.saved = {input(0), output(1)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  if (!is_cuda(context)) return rule;
  const std::int64_t width = context.input_elements(0) / context.output_elements(1);
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
/// two launches; both are added to what is there, dx reading two and writing one.
OpWork work_of_rms_norm(const OpContext& context, const Needs& needs) {
  return work_of_calls(context, needs, {.passes = 2, .launches = 1}, {.passes = 8, .launches = 5});
}

}  // namespace

const OpRow op_rows::rms_norm{.rule = rule_of_rms_norm, .work = work_of_rms_norm};

}  // namespace vramfit
