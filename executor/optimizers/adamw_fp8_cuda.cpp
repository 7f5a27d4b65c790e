#include "executor/optimizers/adamw_fp8_cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/sign.h>

#include <algorithm>

#include "executor/optimizers/adamw_chunks_torch.h"
#include "executor/optimizers/tensor_scales.h"

namespace vramfit {

namespace {

class Fp8Update : private AdamwChunks {
 public:
  explicit Fp8Update(OptimizerCall& call) : AdamwChunks(call, kMaximaOf) {}

  void run() {
    begin();
    for (const ParameterRows& p : call_.rows) {
      number(kLargest).zero_();
      number(kLargest + 1).zero_();
      each_chunk(p, [&] { find_largest(); });
      find_scale(0, kE4m3Format);
      find_scale(1, kF16Format);
      each_chunk(p, [&] { update_chunk(); });
      for (const std::int64_t moment : {0, 1}) keep(scale(moment), number(kScale + moment));
      ++parameter_;
    }
    end();
  }

 private:
  /// Places of two numbers each, but for the second.
  static constexpr std::int64_t kLargest = kFree, kLargestOfChunk = kFree + 2, kScale = kFree + 4;

  /// Between a parameter and the next there are zeros.
  template <typename Visit>
  void each_chunk(const ParameterRows& p, const Visit& visit) {
    const std::int64_t elements = ceil_div(checked_mul(p.held_rows, p.columns), kMaximaOf) * kMaximaOf;
    for (std::int64_t first = 0; first < elements; first += scratch_.chunk()) {
      chunk_ = {p.offset + first, std::min(scratch_.chunk(), elements - first)};
      visit();
    }
  }

  at::Tensor codes() const { return of_chunk(state(0), 1).view(at::kFloat8_e4m3fn); }
  at::Tensor halves() const { return of_chunk(state(1), 1); }
  at::Tensor scale(std::int64_t moment) const { return state(kMoments + moment).narrow(0, parameter_, 1); }

  /// Averages of the chunk with the gradient in them.
  void find_averages(at::Tensor& m, at::Tensor& v) const {
    at::Tensor g = row(2);
    m.copy_(codes()).mul_(scale(0));
    v.copy_(halves()).mul_(scale(1));
    read_gradient(g);
    move_averages(m, v, g);
  }

  void find_largest() const {
    at::Tensor m = row(0), v = row(1), sizes = row(2);
    find_averages(m, v);
    at::abs_out(sizes, m);
    add_largest(0, sizes);
    add_largest(1, v);
  }

  void add_largest(std::int64_t moment, const at::Tensor& sizes) const {
    at::Tensor maxima = part(scratch_.scales(0)).narrow(0, 0, chunk_.count / kMaximaOf);
    at::Tensor of_chunk = number(kLargestOfChunk), largest = number(kLargest + moment);
    at::amax_out(maxima, sizes.view({-1, kMaximaOf}), 1);
    at::amax_out(of_chunk, maxima.view({1, -1}), 1);
    at::maximum_out(largest, largest, of_chunk);
  }

  /// scale_of(), by its bits.
  void find_scale(std::int64_t moment, const ScaledFormat& format) const {
    at::Tensor bits = number(kScale + moment).copy_(number(kLargest + moment)).view(at::kInt);
    bits.clamp_(least_bits(format), kMostBits);
    bits.add_(format.rest).bitwise_and_(kFloatExponent).sub_(format.exponent << kFloatBits);
  }

  void update_chunk() const {
    at::Tensor m = row(0), v = row(1);
    find_averages(m, v);
    update_parameters(m, v);
    keep(codes(), m.div_(number(kScale)));
    at::Tensor least = row(2);
    at::sign_out(least, v).mul_(kLeastF16);
    v.div_(number(kScale + 1));
    keep(halves(), at::maximum_out(v, v, least));
  }

  std::int64_t parameter_ = 0;  // its number among those that are trained
};

}  // namespace

void adamw_fp8_on_cuda(OptimizerCall& call) { Fp8Update(call).run(); }

}  // namespace vramfit
