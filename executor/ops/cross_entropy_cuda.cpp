#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/sub.h>

#include "executor/ops/cross_entropy_torch.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

std::int64_t block_rows(std::int64_t rows) { return std::min(rows, kCrossEntropyBlockRows); }

/// A block of rows in fp32, in `blocks.rows` unless the logits serve.
at::Tensor fp32_rows(const at::Tensor& logits, LossBlocks& blocks) {
  if (!blocks.rows.defined()) return logits;
  at::Tensor rows = blocks.rows.narrow(0, 0, logits.size(0));
  return rows.copy_(logits);
}

/// What label smoothing and z-loss add to the loss of a block whose log-probabilities and lse are there. Sums are
/// products of matrices: reductions take scratch memory that depends on the GPU.
void add_terms(const LogitRows& block, const at::Tensor& log_probs, LossBlocks& blocks, const LossSum& sum) {
  const std::int64_t count = block.labels.size(0);
  at::Tensor counted = blocks.counted.narrow(0, 0, count);
  at::ne_out(counted, block.labels, kIgnoredLabel);
  at::Tensor& total = blocks.block_weight;  // nll_loss_forward's, which nothing reads
  at::Tensor total_matrix = total.view({1, 1});
  if (sum.shape.smoothing != 0) {
    at::Tensor row_sums = blocks.row_sums.narrow(0, 0, count).unsqueeze(1);
    at::mm_out(row_sums, log_probs, blocks.ones);
    at::mm_out(total_matrix, counted.unsqueeze(0), row_sums);
    sum.loss.add_(total, -sum.scale * sum.shape.smoothing / static_cast<double>(log_probs.size(1)));
  }
  if (sum.shape.z != 0) {
    at::Tensor factors = blocks.lse_factors.narrow(0, 0, count);
    at::mul_out(factors, counted, block.lse);
    at::mm_out(total_matrix, factors.unsqueeze(0), block.lse.unsqueeze(1));
    sum.loss.add_(total, sum.scale * sum.shape.z);
  }
}

/// rows = scale ((1 + 2 z lse) softmax - (1 - s) onehot - s / V), zero where there is no label.
void gradient_of_rows(at::Tensor& rows, const LogitRows& block, const LogitsGradient& gradient, LossBlocks& blocks) {
  const std::int64_t count = rows.size(0);
  const LossShape& shape = gradient.shape;
  at::Tensor index = blocks.label_index.narrow(0, 0, count), mask = blocks.label_mask.narrow(0, 0, count);
  rows.sub_(block.lse.unsqueeze(1)).exp_();
  if (shape.z != 0) {
    at::Tensor factors = blocks.row_factors.narrow(0, 0, count);
    factors.copy_(block.lse).mul_(2 * shape.z).add_(1);
    rows.mul_(factors.unsqueeze(1));
  }
  if (shape.smoothing != 0) rows.sub_(shape.smoothing / static_cast<double>(rows.size(1)));
  at::clamp_min_out(index, block.labels, 0);
  at::ne_out(mask, block.labels, kIgnoredLabel);
  mask.neg_();
  if (shape.smoothing != 0) mask.mul_(1 - shape.smoothing);
  rows.scatter_add_(1, index.unsqueeze(1), mask.unsqueeze(1));
  if (shape.smoothing != 0) at::ne_out(mask, block.labels, kIgnoredLabel).neg_();
  mask.mul_(-gradient.scale);
  if (gradient.device_scale != nullptr) mask.mul_(*gradient.device_scale);
  rows.mul_(mask.unsqueeze(1));
}

}  // namespace

void allocate_rows_block(OpCall& call, std::int64_t rows, std::int64_t vocabulary, LossBlocks& blocks) {
  if (call.context.compute() == Dtype::f32 && attributes(call).softcap == 0) return;
  blocks.rows = call.temporaries.allocate("rows", {block_rows(rows), vocabulary}, Dtype::f32);
}

void allocate_loss_blocks(OpCall& call, std::int64_t rows, std::int64_t vocabulary, LossBlocks& blocks) {
  blocks.log_probs = call.temporaries.allocate("log_probs", {block_rows(rows), vocabulary}, Dtype::f32);
  blocks.block_loss = call.temporaries.allocate("block_loss", {1}, Dtype::f32).view(at::IntArrayRef{});
  blocks.block_weight = call.temporaries.allocate("block_weight", {1}, Dtype::f32).view(at::IntArrayRef{});
  const LossShape shape(attributes(call));
  if (shape.is_plain()) return;
  blocks.counted = call.temporaries.allocate("counted", {block_rows(rows)}, Dtype::f32);
  if (shape.smoothing != 0) {
    blocks.ones = call.temporaries.allocate("word_ones", {vocabulary, 1}, Dtype::f32).fill_(1);
    blocks.row_sums = call.temporaries.allocate("row_sums", {block_rows(rows)}, Dtype::f32);
  }
  if (shape.z != 0) blocks.lse_factors = call.temporaries.allocate("lse_factors", {block_rows(rows)}, Dtype::f32);
}

void allocate_label_blocks(OpCall& call, std::int64_t rows, LossBlocks& blocks) {
  blocks.label_index = call.temporaries.allocate("label_index", {block_rows(rows)}, Dtype::i64);
  blocks.label_mask = call.temporaries.allocate("label_mask", {block_rows(rows)}, Dtype::f32);
  if (LossShape(attributes(call)).z == 0) return;
  blocks.row_factors = call.temporaries.allocate("row_factors", {block_rows(rows)}, Dtype::f32);
}

void cross_entropy_loss_cuda(const LogitRows& rows, LossBlocks& blocks, const LossSum& sum) {
  constexpr std::int64_t kSum = 2;  // at::Reduction::Sum
  const std::int64_t total = rows.logits.size(0);
  for (std::int64_t first = 0; first < total; first += kCrossEntropyBlockRows) {
    const std::int64_t count = std::min(kCrossEntropyBlockRows, total - first);
    const at::Tensor logits = fp32_rows(rows.logits.narrow(0, first, count), blocks);
    at::Tensor log_probs = blocks.log_probs.narrow(0, 0, count), lse = rows.lse.narrow(0, first, count);
    at::_log_softmax_out(log_probs, logits, 1, false);
    at::sub_out(lse, logits.select(1, 0), log_probs.select(1, 0));
    const at::Tensor labels = rows.labels.narrow(0, first, count);
    at::nll_loss_forward_out(blocks.block_loss, blocks.block_weight, log_probs, labels, {}, kSum, kIgnoredLabel);
    sum.loss.add_(blocks.block_loss, sum.scale * (1 - sum.shape.smoothing));
    if (!sum.shape.is_plain()) add_terms({logits, labels, lse}, log_probs, blocks, sum);
  }
}

void cross_entropy_gradient_cuda(const LogitRows& rows, const LogitsGradient& gradient, LossBlocks& blocks) {
  const std::int64_t total = rows.logits.size(0);
  for (std::int64_t first = 0; first < total; first += kCrossEntropyBlockRows) {
    const std::int64_t count = std::min(kCrossEntropyBlockRows, total - first);
    at::Tensor logits = rows.logits.narrow(0, first, count), target = gradient.target.narrow(0, first, count);
    const LogitRows block{logits, rows.labels.narrow(0, first, count), rows.lse.narrow(0, first, count)};
    at::Tensor work = fp32_rows(logits, blocks);
    if (!blocks.rows.defined() && target.data_ptr() != logits.data_ptr()) work = target.copy_(logits);
    gradient_of_rows(work, block, gradient, blocks);
    if (gradient.softcap != 0) work.addcmul_(work, logits.div_(gradient.softcap).square_(), -1);
    if (gradient.add) {
      target.add_(work);
    } else if (work.data_ptr() != target.data_ptr()) {
      target.copy_(work);
    }
  }
}

}  // namespace vramfit::kernels
