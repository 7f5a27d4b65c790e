#include "tests/executor/allocator/driver_tap.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace vramfit::testing {

namespace {

struct Recorded {
  std::int64_t stream = 0, number = 0;
};
std::unordered_map<cudaEvent_t, Recorded> recorded_events;
std::unordered_map<std::int64_t, std::int64_t> recorded_on;  // how many a stream has had

/// The function of that name in the libraries behind this program: the phantom's.
template <typename Function>
Function* behind(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "%s: not found behind the test program\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

std::int64_t handle(cudaStream_t stream) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(stream)); }

CUresult (*reserve_behind)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long) = nullptr;

CUresult tapped_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags) {
  const CUresult result = reserve_behind(address, bytes, alignment, wanted, flags);
  if (result == CUDA_SUCCESS) driver_tap().addresses.push_back(static_cast<std::int64_t>(*address));
  return result;
}

}  // namespace

DriverTap& driver_tap() {
  static auto* const kTap = new DriverTap;
  return *kTap;
}

void DriverTap::reset() {
  clear();
  complete.reset();
  recorded_events.clear();
  recorded_on.clear();
}

void DriverTap::clear() {
  addresses.clear();
  answers.clear();
}

}  // namespace vramfit::testing

using vramfit::testing::driver_tap;

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  static auto* const kBehind = vramfit::testing::behind<decltype(cudaMalloc)>("cudaMalloc");
  const cudaError_t result = kBehind(address, bytes);
  if (result == cudaSuccess) {
    driver_tap().addresses.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(*address)));
  }
  return result;
}

cudaError_t cudaFree(void* address) {
  static auto* const kBehind = vramfit::testing::behind<decltype(cudaFree)>("cudaFree");
  return kBehind(address);
}

cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* total) {
  static auto* const kBehind = vramfit::testing::behind<decltype(cudaMemGetInfo)>("cudaMemGetInfo");
  return kBehind(left, total);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  static auto* const kBehind = vramfit::testing::behind<cudaError_t(cudaEvent_t, cudaStream_t)>("cudaEventRecord");
  const std::int64_t on = vramfit::testing::handle(stream);
  vramfit::testing::recorded_events[event] = {on, vramfit::testing::recorded_on[on]++};
  return kBehind(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  static auto* const kBehind = vramfit::testing::behind<decltype(cudaEventQuery)>("cudaEventQuery");
  cudaError_t result = kBehind(event);
  const auto [stream, number] = vramfit::testing::recorded_events[event];
  auto& tap = driver_tap();
  if (tap.complete && number >= (*tap.complete)[stream]) result = cudaErrorNotReady;
  tap.answers[{stream, number}] = result == cudaSuccess;
  return result;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  using Entry = cudaError_t(const char*, void**, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult*);
  static auto* const kBehind = vramfit::testing::behind<Entry>("cudaGetDriverEntryPointByVersion");
  const cudaError_t result = kBehind(symbol, function, version, flags, status);
  if (result == cudaSuccess && std::strcmp(symbol, "cuMemAddressReserve") == 0) {
    vramfit::testing::reserve_behind = reinterpret_cast<decltype(vramfit::testing::reserve_behind)>(*function);
    *function = reinterpret_cast<void*>(&vramfit::testing::tapped_reserve);
  }
  return result;
}
