#include <cmath>
#include <random>

#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

at::Tensor random_tensor(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  at::Tensor values = at::empty(sizes, at::kFloat);
  for (std::int64_t i = 0; i < values.numel(); ++i) values.data_ptr<float>()[i] = normal(engine);
  return values;
}

at::Tensor random_ids(std::int64_t count, std::int64_t high, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  at::Tensor values = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    values.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high));
  }
  return values;
}

at::Tensor random_like(const at::Tensor& truth, std::uint64_t seed) {
  const double mean_square = truth.square().mean().item<double>();
  return random_tensor(truth.sizes().vec(), seed) * (mean_square > 0 ? std::sqrt(mean_square) : 1.0);
}

at::Tensor on_device(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  const at::Tensor all = at::empty({0}, tensor.options()).set_(tensor.storage());
  return all.to(device).as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

}  // namespace vramfit::testing
