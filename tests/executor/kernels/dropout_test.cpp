// Masks of dropout by the kernel's own source, run on CPUs, beside those of CPU ranks.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <limits>

#include "executor/ops/random_mask_torch.h"
#include "tests/executor/kernels/emulated_kernels.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

TEST_CASE("a kernel and CPU ranks drop the same elements and scale the others alike") {
  // Whole packs, a rest, less than a pack, many blocks; from elements that aren't aligned.
  for (const std::int64_t elements : {4096, 1003, 5, 40'000}) {
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
          const EmulatedKernels kernels(backwards);
          at::Tensor to = at::full_like(expected, 7), in_place = values.clone();
          mask_by_kernel(values, to, draw);
          mask_by_kernel(in_place, in_place, draw);
          CHECK(at::allclose(to, expected, 0, 0, true));
          CHECK(at::allclose(in_place, expected, 0, 0, true));
        }
      }
    }
  }
}

}  // namespace vramfit::testing
