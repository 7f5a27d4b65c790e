#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "executor/input_staging_torch.h"

namespace vramfit {

namespace {

at::Tensor pinned(std::int64_t tokens) {
  return at::empty({tokens}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
}

std::span<std::int64_t> span_of(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

InputStaging::InputStaging(at::Device place, std::int64_t tokens) : place_(place), copied_(place.type()) {
  if (!place.is_cuda()) return;
  ids_ = pinned(tokens);
  labels_ = pinned(tokens);
}

void InputStaging::fill(at::Tensor& ids, at::Tensor& labels, const FillInputs& fill) {
  if (!place_.is_cuda()) return fill(span_of(ids), span_of(labels));
  copied_.synchronize();
  fill(span_of(ids_), span_of(labels_));
  ids.copy_(ids_, /*non_blocking=*/true);
  labels.copy_(labels_, /*non_blocking=*/true);
  copied_.record(c10::impl::VirtualGuardImpl(place_.type()).getStream(ids.device()));
}

}  // namespace vramfit
