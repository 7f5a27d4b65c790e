#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/sub.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "executor/training/loss_scaler_torch.h"

namespace vramfit {

namespace {

constexpr const char *kScale = "loss scale", *kGrowthTracker = "growth tracker";
constexpr double kGrowth = 2, kBackoff = 0.5;  // GradScaler's defaults

double number_of(const NamedNumbers& numbers, const char* name) {
  for (const auto& [key, value] : numbers) {
    if (key == name) return value;
  }
  throw ModelError(fmt::format("--resume: the checkpoint has no {}; it was saved without --loss-scale", name));
}

double factor_of_first_step(const LossScale& scale) {
  if (const auto* fixed = std::get_if<FixedLossScale>(&scale)) return fixed->factor;
  return std::get<DynamicLossScale>(scale).first;
}

}  // namespace

void LossScaler::load(Tensors tensors, const NamedNumbers* saved) {
  scale_ = std::move(tensors.scale);
  growth_tracker_ = std::move(tensors.growth_tracker);
  found_inf_ = std::move(tensors.found_inf);
  scale_.fill_(saved == nullptr ? factor_of_first_step(options_) : number_of(*saved, kScale));
  growth_tracker_.fill_(saved == nullptr ? 0 : number_of(*saved, kGrowthTracker));
  found_inf_.zero_();
}

double LossScaler::check_on_host(double scaled_norm) {
  if (!is_on()) return 1;
  found_inf_.fill_(std::isfinite(scaled_norm) ? 0 : 1);
  return scale_.item<double>();
}

void LossScaler::check_on_device(at::Tensor& norm) {
  if (!is_on()) return;
  // x - x is 0 for a finite number and NaN, which isn't itself, for any other.
  at::sub_out(found_inf_, norm, norm);
  found_inf_.ne_(found_inf_);
  norm.div_(scale_);
}

void LossScaler::update() {
  const auto* dynamic = std::get_if<DynamicLossScale>(&options_);
  if (dynamic == nullptr) return;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, kGrowth, kBackoff, dynamic->growth_interval);
}

NamedNumbers LossScaler::numbers() const {
  if (!is_on()) return {};
  return {{kScale, scale_.item<double>()}, {kGrowthTracker, growth_tracker_.item<double>()}};
}

}  // namespace vramfit
