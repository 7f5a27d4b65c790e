#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "executor/optimizers/tensor_scales.h"
#include "executor/sharding/load_rows_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

constexpr std::int64_t kReadAtOnce = std::int64_t{1} << 20;  // elements in fp32 on the host, or a row

/// A rank's rows of a parameter, some at a time.
class RowReader {
 public:
  RowReader(const QuantizingLoad& in, const Parameter& parameter, const UnitParameter& p)
      : in_(in),
        parameter_(parameter),
        p_(p),
        most_(std::max<std::int64_t>(kReadAtOnce / std::max<std::int64_t>(p.row_elements, 1), 1)),
        rows_(own_rows(p, in.shard_group.rank())),
        values_(static_cast<std::size_t>(std::min(most_, rows_) * p.row_elements)) {}

  /// use(first element of the rank's, values)
  template <typename Use>
  void each(const Use& use) {
    for (std::int64_t row = 0; row < rows_; row += most_) {
      const std::int64_t rows = std::min(most_, rows_ - row), elements = rows * p_.row_elements;
      at::Tensor into = tensor_over(values_.data(), elements, at::kFloat);
      in_.weights.read_rows(parameter_, p_.rows_per_rank * in_.shard_group.rank() + row, rows, into);
      use(row * p_.row_elements, std::span<const float>(values_).first(static_cast<std::size_t>(elements)));
    }
  }

 private:
  const QuantizingLoad& in_;
  const Parameter& parameter_;
  const UnitParameter& p_;
  std::int64_t most_, rows_;
  std::vector<float> values_;
};

}  // namespace

void RowSupply::fill_scaled(const Parameter& /*parameter*/, const UnitParameter& /*p*/, const ScaledPart& /*into*/) {
  throw std::logic_error("rows of a matrix that has a scale, of a supply that makes none");
}

void load_scaled(const QuantizingLoad& inputs, const Parameter& parameter, const UnitParameter& p,
                 const ScaledPart& into) {
  if (!inputs.has_values) return;
  RowReader reader(inputs, parameter, p);
  std::int32_t largest = 0;  // by bits: what is no number counts as larger than all, as where updates are rounded
  reader.each([&](std::int64_t /*first*/, std::span<const float> values) {
    for (const float x : values) largest = std::max(largest, std::bit_cast<std::int32_t>(std::fabs(x)));
  });
  const float scale = scale_of(std::bit_cast<float>(largest), kF16Format), inverse = 1 / scale;
  std::vector<at::Half> halves;
  reader.each([&](std::int64_t first, std::span<const float> values) {
    halves.clear();
    for (const float x : values) halves.push_back(static_cast<at::Half>(x * inverse));
    const auto count = static_cast<std::int64_t>(halves.size());
    into.numbers.narrow(0, first, count).copy_(tensor_over(halves.data(), count, at::kHalf));
  });
  into.scale.fill_(scale);
}

}  // namespace vramfit
