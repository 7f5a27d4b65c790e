// Numbers with one scale, read and rounded by the kernels: what their definition gives, to the bit. Loops of CPU ranks
// are held to it by executor/training/scaled_masters_test and fp8_gradients_test.
#include "executor/ops/scaled_numbers_torch.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "executor/optimizers/tensor_scales.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

namespace {

bool is_equal(const at::Tensor& a, const at::Tensor& b) {
  // A NaN of fp16 has other bits on a GPU.
  return at::equal(at::isnan(a), at::isnan(b)) && at::equal(at::nan_to_num(a), at::nan_to_num(b));
}

at::Tensor numbers_of(std::int64_t elements) {
  return random_tensor({elements}, 1) * at::exp(random_tensor({elements}, 2) * 4);
}

}  // namespace

TEST_CASE("a kernel reads numbers with a scale as their definition says, from any place") {
  for (const bool backwards : {false, true}) {
    const PlacedKernels kernels(backwards);
    for (const std::int64_t elements : cases_of_place<std::int64_t>({1, 3, 1024, 5003}, {5'000'011})) {
      for (const std::int64_t first : {0, 1}) {
        for (const at::ScalarType to : {at::kFloat, at::kBFloat16, at::kHalf}) {
          CAPTURE(elements);
          CAPTURE(first);
          CAPTURE(static_cast<int>(to));
          const at::Tensor scale = at::full({1}, 0.25F);
          const at::Tensor scale_there = placed(scale);
          const at::Tensor all = placed(at::zeros({elements + 2}, to)), found = all.narrow(0, first, elements);
          const at::Tensor halves = numbers_of(elements + 2).to(at::kHalf).narrow(0, first, elements);
          scaled_numbers_by_kernel(placed(halves), scale_there, found);
          CHECK(is_equal(found.cpu(), (halves.to(at::kFloat) * scale).to(to)));
          CHECK(at::count_nonzero(all.narrow(0, first + elements, 2 - first)).item<std::int64_t>() == 0);
          const at::Tensor codes = at::arange(elements).to(at::kByte);
          scaled_numbers_by_kernel(placed(codes), scale_there, found);
          CHECK(is_equal(found.cpu(), (codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * scale).to(to)));
        }
      }
    }
  }
}

TEST_CASE("a kernel rounds numbers to fp16 with the scale of the largest, to the bit") {
  for (const bool backwards : {false, true}) {
    const PlacedKernels kernels(backwards);
    for (const std::int64_t elements : cases_of_place<std::int64_t>({1, 3, 1024, 5003, 300'001}, {5'000'011})) {
      for (const float size : {0.0F, 1e-30F, 1.0F, 1e30F, INFINITY, NAN}) {
        CAPTURE(elements);
        CAPTURE(size);
        at::Tensor numbers = numbers_of(elements);
        numbers[elements / 2] = size;
        const at::Tensor halves = placed(at::full({elements}, NAN, at::kHalf)), scale = placed(at::full({1}, NAN));
        round_scaled_by_kernel(placed(numbers), halves, scale);
        const float expected = scale_of(std::fabs(numbers.abs().max().item<float>()), kF16Format);
        CHECK(scale.item<float>() == expected);
        CHECK(is_equal(halves.cpu(), (numbers / expected).to(at::kHalf)));
      }
    }
  }
}

}  // namespace vramfit::testing
