#include <algorithm>

#include "program/ops/rules.h"

namespace vramfit {

namespace {

bool smooths(const OpContext& context) { return context.op.attributes.label_smoothing != 0; }
bool has_z_loss(const OpContext& context) { return context.op.attributes.z_loss != 0; }

}  // namespace

// CUDA, block by block of rows: the block in fp32 (unless it already is), its log-softmax, and nll_loss_forward's two
// scalars. Label smoothing and z-loss take vectors besides, for sums that are products of matrices. Own kernels keep
// each row's loss until they are summed.
std::vector<Step> cuda_cross_entropy_forward(const OpContext& context, std::int64_t rows, std::int64_t vocabulary) {
  if (uses_own_kernel(context)) return {temporary("row_losses", rows, Dtype::f32)};
  const std::int64_t block_rows = std::min(rows, kCrossEntropyBlockRows);
  const std::int64_t block = checked_mul(block_rows, vocabulary);
  std::vector<Step> steps;
  // A softcap's derivative needs the logits as well as their gradient.
  const bool serves = context.compute() == Dtype::f32 && context.op.attributes.softcap == 0;
  if (!serves) steps.push_back(temporary("rows", block, Dtype::f32));
  steps.push_back(temporary("log_probs", block, Dtype::f32));
  steps.push_back(temporary("block_loss", 1, Dtype::f32));
  steps.push_back(temporary("block_weight", 1, Dtype::f32));
  if (smooths(context) || has_z_loss(context)) steps.push_back(temporary("counted", block_rows, Dtype::f32));
  if (smooths(context)) {
    steps.push_back(temporary("word_ones", vocabulary, Dtype::f32));
    steps.push_back(temporary("row_sums", block_rows, Dtype::f32));
  }
  if (has_z_loss(context)) steps.push_back(temporary("lse_factors", block_rows, Dtype::f32));
  return steps;
}

std::vector<Step> cuda_label_blocks(const OpContext& context, std::int64_t rows) {
  if (uses_own_kernel(context)) return {};
  const std::int64_t block_rows = std::min(rows, kCrossEntropyBlockRows);
  std::vector<Step> steps{temporary("label_index", block_rows, Dtype::i64),
                          temporary("label_mask", block_rows, Dtype::f32)};
  if (has_z_loss(context)) steps.push_back(temporary("row_factors", block_rows, Dtype::f32));
  return steps;
}

// CUDA: softmax = exp(x - lse) in fp32 over a block, less one at the label; rows without a label are zeroed.
std::vector<Step> cuda_cross_entropy_backward(const OpContext& context, std::int64_t rows, std::int64_t vocabulary) {
  const std::int64_t block_rows = std::min(rows, kCrossEntropyBlockRows);
  std::vector<Step> steps = cuda_label_blocks(context, rows);
  if (context.compute() != Dtype::f32 && !uses_own_kernel(context)) {
    steps.insert(steps.begin(), temporary("rows", checked_mul(block_rows, vocabulary), Dtype::f32));
  }
  return steps;
}

namespace {

/// Sum over labelled rows of lse - logit[label], scaled. Backward needs logits and one fp32 lse per row; softmax is
/// recomputed from them in place, so the gradient of the logits is the logits' own storage: no log-probabilities are
/// kept and no second [N, V] tensor exists.
///
/// CPU and own kernels: own loops, row by row.
Rule rule_of_cross_entropy(const OpContext& context, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {input(0), input(1), output(1)};
  rule.gradients = {{GradientSource::From::saved, 0}};
  if (is_cuda(context)) {
    const std::int64_t rows = context.tokens(), vocabulary = context.input_elements(0) / rows;
    rule.forward = cuda_cross_entropy_forward(context, rows, vocabulary);
    rule.backward = cuda_cross_entropy_backward(context, rows, vocabulary);
  }
  return rule;
}

/// Calls on each block of rows that read and write `bytes` for each logit.
Work block_work(std::int64_t rows, std::int64_t vocabulary, std::int64_t launches, double bytes) {
  return {.launches = checked_mul(launches, ceil_div(rows, kCrossEntropyBlockRows)),
          .bytes = bytes * static_cast<double>(rows) * static_cast<double>(vocabulary)};
}

/// Calls on all rows that read and write `bytes` for each logit.
Work pass_work(std::int64_t rows, std::int64_t vocabulary, std::int64_t launches, double bytes) {
  return {.launches = launches, .bytes = bytes * static_cast<double>(rows) * static_cast<double>(vocabulary)};
}

double logit_bytes(const OpContext& context) { return static_cast<double>(dtype_bytes(context.compute()).n); }

}  // namespace

// A copy in fp32, its log-softmax, and three calls on vectors. Label smoothing reads the log-probabilities once more.
Work cuda_cross_entropy_forward_work(const OpContext& context, std::int64_t rows, std::int64_t vocabulary) {
  const double width = logit_bytes(context);
  if (uses_own_kernel(context)) return pass_work(rows, vocabulary, 2, width);
  const bool smooth = smooths(context), has_z = has_z_loss(context);
  const std::int64_t launches = 5 + (smooth || has_z ? 1 : 0) + (smooth ? 3 : 0) + (has_z ? 3 : 0);
  return block_work(rows, vocabulary, launches, (width + 4) + 8 + (smooth ? 4 : 0));
}

// A copy in fp32, less lse, exp, times the mask, and a copy back; five calls on vectors. Label smoothing and z-loss
// each pass over the block once more.
Work cuda_cross_entropy_backward_work(const OpContext& context, std::int64_t rows, std::int64_t vocabulary) {
  const double width = logit_bytes(context);
  if (uses_own_kernel(context)) return pass_work(rows, vocabulary, 1, 2 * width);
  const bool smooth = smooths(context), has_z = has_z_loss(context);
  const std::int64_t launches = 10 + (smooth ? 4 : 0) + (has_z ? 4 : 0);
  const double passes = 3 + (smooth ? 1 : 0) + (has_z ? 1 : 0);
  return block_work(rows, vocabulary, launches, (width + 4) + passes * 8 + (4 + width));
}

namespace {

OpWork work_of_cross_entropy(const OpContext& context, const Needs& needs) {
  if (!is_cuda(context)) return work_of_passes(context, needs);
  const std::int64_t rows = context.tokens(), vocabulary = context.input_elements(0) / rows;
  OpWork work{.forward = {cuda_cross_entropy_forward_work(context, rows, vocabulary)}, .backward = {}};
  if (needs.any()) work.backward = {cuda_cross_entropy_backward_work(context, rows, vocabulary)};
  return work;
}

}  // namespace

const OpRow op_rows::cross_entropy{
    .rule = rule_of_cross_entropy, .work = work_of_cross_entropy, .is_loss = true, .has_own_kernel = true};

}  // namespace vramfit
