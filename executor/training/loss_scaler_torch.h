// The loss scale under fp16, kept as in torch.amp.GradScaler: on the device, so nothing waits for the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "job/job.h"

namespace vramfit {

/// Numbers of a checkpoint's manifest, by name.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

class LossScaler {
 public:
  /// What the step's program keeps: [1] each, on the device.
  struct Tensors {
    at::Tensor scale, growth_tracker, found_inf;  // fp32, int32, fp32
  };

  explicit LossScaler(const Job& job) : options_(loss_scaling(job)) {}

  bool is_on() const { return !std::holds_alternative<NoLossScale>(options_); }
  bool adapts() const { return std::holds_alternative<DynamicLossScale>(options_); }
  /// Sets the tensors; not called without a scale. Throws ModelError when `saved` lacks a number that this run needs.
  void load(Tensors tensors, const NamedNumbers* saved);

  /// [1] fp32 on the device; null without a scale.
  const at::Tensor* scale() const { return is_on() ? &scale_ : nullptr; }

  /// Both take the norm of all gradients of all ranks, scaled: it is no finite number exactly where a gradient isn't
  /// (fp32 holds squares up to 2^128, and fp16 gives gradients below 2^16 a micro-batch and rank), and being a sum over
  /// ranks it carries that to each of them. Without a scale they do nothing.
  /// CPU: returns the scale, 1 without one.
  double check_on_host(double scaled_norm);
  /// CUDA: turns `norm` into that of the gradients themselves.
  void check_on_device(at::Tensor& norm);
  /// After the optimizer's step: halves the scale if the step was skipped, doubles it after the growth interval.
  void update();

  /// For a checkpoint; waits for the device.
  NamedNumbers numbers() const;

 private:
  LossScale options_;
  at::Tensor scale_, growth_tracker_, found_inf_;
};

}  // namespace vramfit
