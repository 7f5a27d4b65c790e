#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "tests/executor/ops/allocations_torch.h"

namespace vramfit::testing {

namespace {

/// Notes every allocation while `counting`.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (counting) seen.push_back(static_cast<std::int64_t>(bytes));
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool counting = false;
  std::vector<std::int64_t> seen;
};

CountingAllocator& counter() {
  static CountingAllocator allocator;
  static const bool kInstalled = [] {
    c10::SetCPUAllocator(&allocator, 1);
    return true;
  }();
  static_cast<void>(kInstalled);
  return allocator;
}

/// What the place's allocator has handed out so far, if it isn't CPUs'.
Allocations until_now(at::Device place) {
  if (place.is_cpu()) return {};
  const auto stats = c10::getDeviceAllocator(place.type())->getDeviceStats(place.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {
      .on_cpu = {}, .on_gpu = stats.allocation[kAll].allocated, .bytes_on_gpu = stats.requested_bytes[kAll].allocated};
}

}  // namespace

Allocations allocations_at(at::Device place, const std::function<void()>& f) {
  const Allocations before = until_now(place);
  counter().seen.clear();
  counter().counting = true;
  f();
  counter().counting = false;
  const Allocations after = until_now(place);
  return {.on_cpu = counter().seen,
          .on_gpu = after.on_gpu - before.on_gpu,
          .bytes_on_gpu = after.bytes_on_gpu - before.bytes_on_gpu};
}

std::vector<std::int64_t> allocations_of(const std::function<void()>& f) { return allocations_at(at::kCPU, f).on_cpu; }

Uncounted::Uncounted() : was_counting_(counter().counting) { counter().counting = false; }
Uncounted::~Uncounted() { counter().counting = was_counting_; }

}  // namespace vramfit::testing
