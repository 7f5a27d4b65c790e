// Data of the tests of kernels.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace vramfit::testing {

/// Seeded normal values.
at::Tensor random_tensor(const std::vector<std::int64_t>& sizes, std::uint64_t seed);
/// Seeded integers of [0, high).
at::Tensor random_ids(std::int64_t count, std::int64_t high, std::uint64_t seed);
/// Seeded normal values as large as those of `truth`, so that neither is lost to rounding beside the other; of size 1
/// where it is 0.
at::Tensor random_like(const at::Tensor& truth, std::uint64_t seed);

/// The tensor on a device, as far from the beginning of its storage as it is, with what else is there; where it is
/// already, itself.
at::Tensor on_device(const at::Tensor& tensor, at::Device device);

}  // namespace vramfit::testing
