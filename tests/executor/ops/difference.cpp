#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/executor/ops/difference_torch.h"

namespace vramfit::testing {

namespace {

double norm_of(const at::Tensor& values) { return values.defined() ? values.norm().item<double>() : 0; }

double half_unit_in_last_place(at::ScalarType type) {
  if (type == at::kBFloat16) return 0x1p-8;
  if (type == at::kHalf) return 0x1p-11;
  return 0x1p-24;
}

double allowed(const Expected& expected, at::ScalarType type, double tolerance) {
  const double added = norm_of(expected.truth) + norm_of(expected.before);
  const double roundings = std::sqrt(static_cast<double>(expected.additions)) * half_unit_in_last_place(type) * added;
  return tolerance * norm_of(expected.truth) + roundings +
         half_unit_in_last_place(at::kFloat) * norm_of(expected.cancelled);
}

}  // namespace

std::string difference(const at::Tensor& got, const Expected& expected, double tolerance) {
  if (got.sizes() != expected.truth.sizes())
    return fmt::format("{} elements, not {}", got.numel(), expected.truth.numel());
  const at::Tensor wanted = expected.before.defined() ? expected.truth + expected.before : expected.truth;
  const at::Tensor errors = got.to(at::kDouble) - wanted;
  const double error = norm_of(errors), most = allowed(expected, got.scalar_type(), tolerance);
  if (!(error <= most)) {
    return fmt::format("an error of norm {:.3g}, above {:.3g}; the truth's norm is {:.3g}", error, most,
                       norm_of(expected.truth));
  }
  at::Tensor untouched = expected.truth == 0;
  if (expected.cancelled.defined()) untouched = untouched.logical_and(expected.cancelled == 0);
  const auto moved = errors.masked_select(untouched).count_nonzero().item<std::int64_t>();
  return moved == 0 ? std::string() : fmt::format("{} elements that are exactly 0 have another value", moved);
}

}  // namespace vramfit::testing
