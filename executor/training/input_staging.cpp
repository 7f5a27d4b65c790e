#include <c10/core/impl/VirtualGuardImpl.h>

#include "executor/training/input_staging_torch.h"

namespace vramfit {

namespace {

std::span<std::int64_t> span_of(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

void InputStaging::fill(Operands& operands, const FillInputs& fill) {
  at::Tensor &ids = operands[0], &labels = operands[1];
  if (!place_.is_cuda()) return fill(span_of(ids), span_of(labels));
  at::Tensor &pinned_ids = operands[2], &pinned_labels = operands[3];
  copied_.synchronize();
  fill(span_of(pinned_ids), span_of(pinned_labels));
  ids.copy_(pinned_ids, /*non_blocking=*/true);
  labels.copy_(pinned_labels, /*non_blocking=*/true);
  copied_.record(c10::impl::VirtualGuardImpl(place_.type()).getStream(ids.device()));
}

}  // namespace vramfit
