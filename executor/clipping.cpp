#include <algorithm>
#include <cmath>

#include "executor/clipping_torch.h"
#include "executor/tensor_torch.h"

namespace vramfit {

namespace {

constexpr double kLeastNorm = 1e-6;  // of clip_grad_norm_

}  // namespace

void Clipping::load() {
  const auto scalar = [&](const char* label) {
    at::Tensor tensor = allocate_tensor({1}, Dtype::f32, {place_, Category::workspace, label});
    return tensor.zero_();
  };
  norm_ = scalar("gradient norm");
  divisor_ = scalar("clip scale");
  if (place_.is_cuda()) part_ = scalar("norm part");
}

void Clipping::measure(const std::vector<UnitState>& units, Collectives* shards, LossScaler& scaler) {
  if (place_.is_cuda()) {
    norm_.zero_();
    for (const UnitState& unit : units) {
      if (unit.gradient_shard().defined()) add_squares(unit.gradient_shard(), device_, part_, norm_);
    }
  } else {
    double squares = 0;
    for (const UnitState& unit : units) {
      if (unit.gradient_shard().defined()) squares += sum_of_squares(unit.gradient_shard());
    }
    norm_.fill_(squares);
  }
  if (shards != nullptr) {
    if (const Pending sum = shards->all_reduce({norm_})) sum->wait();
  }
  place_.is_cpu() ? measure_on_host(scaler) : measure_on_device(scaler);
}

/// Plain arithmetic: on CPU a tensor's sum with a number would allocate a tensor for the number.
void Clipping::measure_on_host(LossScaler& scaler) {
  const double scaled_norm = std::sqrt(norm_.item<double>()), scale = scaler.check_on_host(scaled_norm);
  const double norm = scaled_norm / scale;
  norm_.fill_(norm);
  divisor_.fill_(scale * (clip_ > 0 ? std::max(1.0, (norm + kLeastNorm) / clip_) : 1.0));
}

void Clipping::measure_on_device(LossScaler& scaler) {
  norm_.sqrt_();
  scaler.check_on_device(norm_);
  if (clip_ > 0) {
    divisor_.copy_(norm_).add_(kLeastNorm).div_(clip_).clamp_min_(1);
  } else {
    divisor_.fill_(1);
  }
  if (scaler.is_on()) divisor_.mul_(*scaler.scale());
}

}  // namespace vramfit
