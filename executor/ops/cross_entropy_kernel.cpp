#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/cross_entropy_torch.h"

namespace vramfit::kernels {

namespace {

cuda::LossRows loss_rows(const LogitRows& rows, const LossShape& shape) {
  return {.logits = rows.logits.const_data_ptr(),
          .number = number_of(rows.logits.scalar_type()),
          .labels = rows.labels.const_data_ptr<std::int64_t>(),
          .ignored = kIgnoredLabel,
          .lse = rows.lse.mutable_data_ptr<float>(),
          .rows = rows.logits.size(0),
          .columns = rows.logits.size(1),
          .smoothing = shape.smoothing,
          .z = shape.z};
}

}  // namespace

at::Tensor allocate_row_losses(OpCall& call, std::int64_t rows) {
  return call.temporaries.allocate("row_losses", {rows}, Dtype::f32);
}

void cross_entropy_loss_own(const LogitRows& rows, const at::Tensor& row_losses, const LossSum& sum) {
  check_launch(require_own_kernels().cross_entropy(loss_rows(rows, sum.shape), row_losses.mutable_data_ptr<float>(),
                                                   sum.scale, sum.loss.mutable_data_ptr<float>(),
                                                   stream_of(rows.logits)));
}

void cross_entropy_gradient_own(const LogitRows& rows, const LogitsGradient& gradient) {
  const at::Tensor* const factor = gradient.device_scale;
  const cuda::LogitGradients to{.target = gradient.target.mutable_data_ptr(),
                                .scale = static_cast<float>(gradient.scale),
                                .device_scale = factor == nullptr ? nullptr : factor->const_data_ptr<float>(),
                                .softcap = static_cast<float>(gradient.softcap),
                                .add = gradient.add};
  check_launch(
      require_own_kernels().cross_entropy_backward(loss_rows(rows, gradient.shape), to, stream_of(rows.logits)));
}

}  // namespace vramfit::kernels
