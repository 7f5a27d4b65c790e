#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <utility>

#include "executor/training/scaled_sums_torch.h"

namespace vramfit {

namespace {

std::int64_t rows_of(const std::vector<ScaledRows>& added) {
  std::int64_t rows = 0;
  for (const ScaledRows& one : added) rows += one.numbers.size(0);
  return rows;
}

}  // namespace

SumsByCalls::SumsByCalls(std::vector<ScaledRows> added, at::Tensor plain, at::Tensor scratch)
    : added_(std::move(added)),
      plain_(plain.defined() ? plain.view({1, -1}) : plain),
      scratch_(std::move(scratch)),
      sizes_{.elements = added_.front().numbers.size(1), .rows = rows_of(added_)} {}

SumsByCalls::SumsByCalls(at::Tensor plain, at::Tensor scratch)
    : plain_(std::move(plain)),
      scratch_(std::move(scratch)),
      sizes_{.elements = plain_.size(1), .rows = plain_.size(0)},
      results_(sizes_.rows) {}

template <typename Visit>
void SumsByCalls::each_chunk(const Visit& visit) {
  for (first_ = 0; first_ < sizes_.elements; first_ += sizes_.width()) {
    count_ = std::min(sizes_.width(), sizes_.elements - first_);
    visit();
  }
}

void SumsByCalls::round_to(const ScaledRows& rows, const ScaledFormat& format) {
  numbers(kLargest).zero_();
  each_chunk([&] { find_largest(); });
  find_scales(format);
  const at::Tensor scales = numbers(kScale);
  each_chunk([&] {
    add_up();
    of_chunk(rows.numbers).copy_(results().div_(scales.view({-1, 1})));
  });
  rows.scales.copy_(scales);
}

/// A chunk's, in whole groups of kMaximaOf for each row.
at::Tensor SumsByCalls::values() const {
  const std::int64_t width = ceil_div(count_, kMaximaOf) * kMaximaOf;
  return part(sizes_.values()).narrow(0, 0, sizes_.rows * width).view({sizes_.rows, width});
}

/// Rows by halves, so that many of them take few calls.
void SumsByCalls::add_up() const {
  const at::Tensor all = values().narrow(1, 0, count_);
  std::int64_t rows = 0;
  for (const ScaledRows& one : added_) {
    at::Tensor into = all.narrow(0, rows, one.numbers.size(0));
    into.copy_(of_chunk(one.numbers)).mul_(one.scales.view({-1, 1}));
    rows += into.size(0);
  }
  if (rows == 0) return static_cast<void>(at::Tensor(all).copy_(of_chunk(plain_)));
  for (std::int64_t half = 0; rows > 1; rows = half) {
    half = ceil_div(rows, 2);
    all.narrow(0, 0, rows - half).add_(all.narrow(0, half, rows - half));
  }
  if (plain_.defined()) results().add_(of_chunk(plain_));
}

/// By kMaximaOf numbers first: a reduction of all of them would work in memory of its own.
void SumsByCalls::find_largest() const {
  add_up();
  results().abs_();
  const at::Tensor all = values().narrow(0, 0, results_);
  const std::int64_t rest = all.size(1) - count_, groups = all.size(1) / kMaximaOf;
  if (rest > 0) all.narrow(1, count_, rest).zero_();
  at::Tensor maxima = part(sizes_.maxima()).narrow(0, 0, results_ * groups);
  at::Tensor of_chunk = numbers(kLargestOfChunk), largest = numbers(kLargest);
  at::amax_out(maxima, all.view({-1, kMaximaOf}), 1);
  at::amax_out(of_chunk, maxima.view({results_, groups}), 1);
  at::maximum_out(largest, largest, of_chunk);
}

/// scale_of(), by its bits.
void SumsByCalls::find_scales(const ScaledFormat& format) const {
  at::Tensor bits = numbers(kScale).copy_(numbers(kLargest)).view(at::kInt);
  bits.clamp_(least_bits(format), kMostBits);
  bits.add_(format.rest).bitwise_and_(kFloatExponent).sub_(format.exponent << kFloatBits);
}

}  // namespace vramfit
