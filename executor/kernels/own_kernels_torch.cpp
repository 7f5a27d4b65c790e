#include "executor/kernels/own_kernels_torch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <stdexcept>

#include "executor/kernels/own_kernels.h"

namespace vramfit {

const cuda::Kernels& require_own_kernels() {
  const cuda::Kernels* const kernels = own_kernels();
  if (kernels == nullptr) throw std::logic_error("no library of CUDA kernels");
  return *kernels;
}

cuda::Number number_of(at::ScalarType type) {
  if (type == at::kFloat) return cuda::Number::f32;
  if (type == at::kBFloat16) return cuda::Number::bf16;
  if (type == at::kHalf) return cuda::Number::f16;
  throw std::logic_error("kernels of another dtype");
}

cuda::Stream stream_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  return guard.getStreamNativeHandle(guard.getStream(tensor.device()));
}

void check_launch(int status) {
  if (status != 0) throw std::runtime_error(fmt::format("a CUDA kernel was not launched: cudaError {}", status));
}

}  // namespace vramfit
