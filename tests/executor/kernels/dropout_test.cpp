// Masks of dropout by the kernel, and by LibTorch's functions, beside those of CPU ranks.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <limits>

#include "executor/ops/random_mask_torch.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

TEST_CASE("a kernel and CPU ranks drop the same elements and scale the others alike") {
  // Whole packs, a rest, less than a pack, many blocks; from elements that aren't aligned.
  for (const std::int64_t elements : cases_of_place<std::int64_t>({4096, 1003, 5, 40'000}, {10'000'019})) {
    for (const std::int64_t skipped : {0, 1}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        CAPTURE(elements);
        CAPTURE(skipped);
        CAPTURE(static_cast<int>(type));
        at::Tensor values = random_tensor({elements + skipped}, 3).to(type).narrow(0, skipped, elements);
        values[elements / 2] = std::numeric_limits<float>::infinity();
        const MaskDraw draw{.key = dropout_key(7, 3, "layers.0.A"), .first = 1'000'000'007, .keep = 0.9};
        at::Tensor expected = values.clone();
        mask_on_cpu(expected, draw);
        for (const bool backwards : {false, true}) {
          const PlacedKernels kernels(backwards);
          at::Tensor to = placed(at::full_like(expected, 7)), in_place = placed(values.clone());
          mask_by_kernel(placed(values), to, draw);
          mask_by_kernel(in_place, in_place, draw);
          CHECK(at::allclose(to.cpu(), expected, 0, 0, true));
          CHECK(at::allclose(in_place.cpu(), expected, 0, 0, true));
        }
        at::Tensor by_calls = placed(values.clone());
        const at::Tensor words = placed(at::empty({elements}, at::kLong)), bits = at::empty_like(words);
        mask_by_calls(by_calls, draw, words, bits);
        // LibTorch's function for CPUs rounds the factor to 16 bits first.
        const double rounding = kernel_device().is_cpu() && type != at::kFloat ? 0x1p-6 : 0;
        CHECK(at::allclose(by_calls.cpu(), expected, rounding, 0, true));
      }
    }
  }
}

}  // namespace vramfit::testing
