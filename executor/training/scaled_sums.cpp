#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <utility>

#include "executor/training/scaled_sums_torch.h"

namespace vramfit {

SumsByCalls::SumsByCalls(std::vector<ScaledPart> parts, at::Tensor added, at::Tensor scratch)
    : parts_(std::move(parts)),
      added_(std::move(added)),
      scratch_(std::move(scratch)),
      sizes_{added_.defined() ? added_.numel() : parts_.front().numbers.numel()} {}

template <typename Visit>
void SumsByCalls::each_chunk(const Visit& visit) {
  for (first_ = 0; first_ < sizes_.elements; first_ += sizes_.chunk()) {
    count_ = std::min(sizes_.chunk(), sizes_.elements - first_);
    visit();
  }
}

void SumsByCalls::round_to(const ScaledPart& sum, const ScaledFormat& format) {
  number(kLargest).zero_();
  each_chunk([&] { find_largest(); });
  find_scale(format);
  each_chunk([&] {
    add_up();
    of_chunk(sum.numbers).copy_(values().div_(number(kScale)));
  });
  sum.scale.copy_(number(kScale));
}

void SumsByCalls::add_up() const {
  at::Tensor into = values();
  const at::Tensor next = part(sizes_.of_replica()).narrow(0, 0, count_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor& to = i == 0 ? into : next;
    to.copy_(of_chunk(parts_[i].numbers)).mul_(parts_[i].scale);
    if (i > 0) into.add_(next);
  }
  if (!added_.defined()) return;
  parts_.empty() ? into.copy_(of_chunk(added_)) : into.add_(of_chunk(added_));
}

/// By rows of kMaximaOf numbers first: a reduction of all of them would work in memory of its own.
void SumsByCalls::find_largest() const {
  add_up();
  values().abs_();
  const std::int64_t rows = ceil_div(count_, kMaximaOf), rest = rows * kMaximaOf - count_;
  if (rest > 0) part(sizes_.values()).narrow(0, count_, rest).zero_();
  at::Tensor maxima = part(sizes_.maxima()).narrow(0, 0, rows);
  at::Tensor of_chunk = number(kLargestOfChunk), largest = number(kLargest);
  at::amax_out(maxima, part(sizes_.values()).narrow(0, 0, rows * kMaximaOf).view({-1, kMaximaOf}), 1);
  at::amax_out(of_chunk, maxima.view({1, -1}), 1);
  at::maximum_out(largest, largest, of_chunk);
}

/// scale_of(), by its bits.
void SumsByCalls::find_scale(const ScaledFormat& format) const {
  at::Tensor bits = number(kScale).copy_(number(kLargest)).view(at::kInt);
  bits.clamp_(least_bits(format), kMostBits);
  bits.add_(format.rest).bitwise_and_(kFloatExponent).sub_(format.exponent << kFloatBits);
}

}  // namespace vramfit
