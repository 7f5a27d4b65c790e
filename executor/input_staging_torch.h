// How token ids and labels get to the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <span>

namespace vramfit {

/// Writes the ids and labels of one micro-batch.
using FillInputs = std::function<void(std::span<std::int64_t> ids, std::span<std::int64_t> labels)>;

/// Host memory for one micro-batch: pinned on GPU ranks (pinned_bytes in estimator/rank_estimate.h), so that the copy
/// to the device doesn't hold the host until the device has caught up. CPU ranks need none.
class InputStaging {
 public:
  /// `tokens`: of a micro-batch.
  InputStaging(at::Device place, std::int64_t tokens);

  /// Sets the inputs of the next micro-batch, on the device, to what `fill` writes. Waits until those of the last one
  /// were copied, which happens before their forward pass, so the host stays up to one micro-batch ahead.
  void fill(at::Tensor& ids, at::Tensor& labels, const FillInputs& fill);

 private:
  at::Device place_;
  at::Tensor ids_, labels_;  // pinned
  c10::Event copied_;
};

}  // namespace vramfit
