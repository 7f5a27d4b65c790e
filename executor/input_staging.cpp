#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "executor/input_staging_torch.h"
#include "executor/tensor_torch.h"

namespace vramfit {

namespace {

at::Tensor pinned(std::int64_t tokens) {
  return at::empty({tokens}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
}

std::span<std::int64_t> span_of(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

InputStaging::InputStaging(at::Device place, std::int64_t tokens)
    : place_(place), tokens_(tokens), copied_(place.type()) {
  if (!place.is_cuda()) return;
  ids_ = pinned(tokens);
  labels_ = pinned(tokens);
}

InputStaging::Inputs InputStaging::next(const FillInputs& fill) {
  const auto on_device = [&](const char* label) {
    return allocate_tensor({tokens_}, Dtype::i64, {place_, Category::activations, label});
  };
  if (!place_.is_cuda()) {
    Inputs inputs{.ids = on_device("inputs: ids"), .labels = on_device("inputs: labels")};
    fill(span_of(inputs.ids), span_of(inputs.labels));
    return inputs;
  }
  copied_.synchronize();
  fill(span_of(ids_), span_of(labels_));
  Inputs inputs{.ids = on_device("inputs: ids"), .labels = on_device("inputs: labels")};
  inputs.ids.copy_(ids_, /*non_blocking=*/true);
  inputs.labels.copy_(labels_, /*non_blocking=*/true);
  copied_.record(c10::impl::VirtualGuardImpl(place_.type()).getStream(inputs.ids.device()));
  return inputs;
}

}  // namespace vramfit
