// What LibTorch's allocators hand out while a test runs something.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace vramfit::testing {

struct Allocations {
  std::vector<std::int64_t> on_cpu;  // bytes of every tensor, in order
  std::int64_t on_gpu = 0;           // tensors
  std::int64_t bytes_on_gpu = 0;
};
/// While f runs, on CPUs and on the place.
Allocations allocations_at(at::Device place, const std::function<void()>& f);
/// On CPUs alone.
std::vector<std::int64_t> allocations_of(const std::function<void()>& f);

/// While one lives, what CPUs are given isn't counted.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
  Uncounted(Uncounted&&) = delete;
  Uncounted& operator=(Uncounted&&) = delete;

 private:
  bool was_counting_;
};

}  // namespace vramfit::testing
