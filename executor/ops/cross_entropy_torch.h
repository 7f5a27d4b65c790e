// Cross entropy over rows of logits, shared by the full and the chunked loss.
#pragma once

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

/// Labels of this value are left out of the loss (PyTorch's ignore_index).
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Rows of logits [N, V], their labels and where their log-sum-exp [N] goes.
struct LogitRows {
  at::Tensor logits, labels, lse;
};

/// Of a labelled row of V logits x, whose log-sum-exp is lse, the loss is
/// (1 - s) (lse - x[label]) + s (lse - mean(x)) + z lse^2: PyTorch's label_smoothing s (Szegedy et al. 2016,
/// arXiv 1512.00567), and PaLM's z-loss (Chowdhery et al. 2022, arXiv 2204.02311, section 5).
struct LossShape {
  explicit LossShape(const Attributes& of) : smoothing(of.label_smoothing), z(of.z_loss) {}
  bool is_plain() const { return smoothing == 0 && z == 0; }
  double smoothing = 0, z = 0;
};

/// Fills lse; the sum of the losses of labelled rows, in double and in an order that no number of threads changes. CPU.
double cross_entropy_loss(const LogitRows& rows, const LossShape& shape);

/// target = or += scale ((1 + 2 z lse) softmax(logits) - (1 - s) onehot(label) - s / V), zero where there is no label;
/// target may be the logits. With a softcap the logits are cap tanh(x / cap) and the gradient is that of x. CPU.
struct LogitsGradient {
  at::Tensor target;
  LossShape shape;
  double scale = 1, softcap = 0;
  bool add = false;
  const at::Tensor* device_scale = nullptr;  // CUDA: [1] fp32, a further factor
};
/// 1 / label tokens, times the loss scale. CPU.
double gradient_factor(const OpCall& call);
void cross_entropy_gradient(const LogitRows& rows, const LogitsGradient& gradient);

/// The temporaries of ATen's path over blocks of at most kCrossEntropyBlockRows rows, named as the rules list them.
/// `rows` is undefined where the fp32 logits themselves serve.
struct LossBlocks {
  at::Tensor rows, log_probs, block_loss, block_weight, label_index, label_mask;
  at::Tensor counted, ones, row_sums, lse_factors, row_factors;  // for label smoothing and z-loss
};
void allocate_rows_block(OpCall& call, std::int64_t rows, std::int64_t vocabulary, LossBlocks& blocks);
void allocate_loss_blocks(OpCall& call, std::int64_t rows, std::int64_t vocabulary, LossBlocks& blocks);
void allocate_label_blocks(OpCall& call, std::int64_t rows, LossBlocks& blocks);

/// The same two by ATen's kernels: loss[0] += scale * sum; the gradient over `target`, which may be the logits. With a
/// softcap the logits are spent.
struct LossSum {
  LossShape shape;
  double scale = 1;
  at::Tensor& loss;
};
void cross_entropy_loss_cuda(const LogitRows& rows, LossBlocks& blocks, const LossSum& sum);
void cross_entropy_gradient_cuda(const LogitRows& rows, const LogitsGradient& gradient, LossBlocks& blocks);

/// The same two by the engine's own kernels (docs/kernels.md), each in one pass over the logits, which a softcap leaves
/// as they are. `row_losses` [N] is scratch, which allocate_row_losses makes under the name that the rules list.
at::Tensor allocate_row_losses(OpCall& call, std::int64_t rows);
void cross_entropy_loss_own(const LogitRows& rows, const at::Tensor& row_losses, const LossSum& sum);
void cross_entropy_gradient_own(const LogitRows& rows, const LogitsGradient& gradient);

}  // namespace vramfit::kernels
