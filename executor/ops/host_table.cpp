#include <ATen/ops/from_blob.h>

#include "executor/ops/host_table_torch.h"

namespace vramfit {

at::Tensor host_table(std::span<const float> numbers) {
  auto* const begin = const_cast<float*>(numbers.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast): only read
  return at::from_blob(begin, {static_cast<std::int64_t>(numbers.size())}, at::TensorOptions().dtype(at::kFloat));
}

}  // namespace vramfit
