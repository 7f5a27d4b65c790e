#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/scaled_numbers_torch.h"

namespace vramfit {

namespace {

cuda::ScaledRange range_of(const at::Tensor& numbers, const at::Tensor& scale) {
  return {.stored = numbers.mutable_data_ptr(),
          .is_e4m3 = numbers.scalar_type() != at::kHalf,
          .scale = scale.mutable_data_ptr<float>(),
          .elements = numbers.numel()};
}

}  // namespace

void scaled_numbers_by_kernel(const at::Tensor& numbers, const at::Tensor& scale, const at::Tensor& to) {
  check_launch(require_own_kernels().read_scaled(range_of(numbers, scale), to.mutable_data_ptr(),
                                                 number_of(to.scalar_type()), stream_of(to)));
}

void round_scaled_by_kernel(const at::Tensor& from, const at::Tensor& numbers, const at::Tensor& scale) {
  check_launch(
      require_own_kernels().round_scaled(from.const_data_ptr<float>(), range_of(numbers, scale), stream_of(from)));
}

}  // namespace vramfit
