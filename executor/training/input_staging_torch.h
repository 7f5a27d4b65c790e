// How token ids and labels get to the device.
#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <span>

#include "executor/training/program_runner_torch.h"

namespace vramfit {

/// Writes the ids and labels of one micro-batch.
using FillInputs = std::function<void(std::span<std::int64_t> ids, std::span<std::int64_t> labels)>;

/// On GPU ranks they are copied from pinned memory, so that the copy to the device doesn't hold the host until the
/// device has caught up. CPU ranks write them where they are read.
class InputStaging {
 public:
  explicit InputStaging(at::Device place) : place_(place), copied_(place.type()) {}

  /// Sets the operands of program::Kernel::inputs for the next micro-batch to what `fill` writes. Waits until those of
  /// the last one were copied, which happens before their forward pass, so the host stays up to one micro-batch ahead.
  void fill(Operands& operands, const FillInputs& fill);

 private:
  at::Device place_;
  c10::Event copied_;
};

}  // namespace vramfit
