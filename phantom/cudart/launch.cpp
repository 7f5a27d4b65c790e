// Registration, launches and what is asked about kernels. The __cuda functions are called by code that nvcc generates;
// their signatures are those of the toolkit's crt/host_runtime.h and crt/device_functions.h.
#include <cstdint>
#include <cstring>
#include <vector>

#include "phantom/core/architecture.h"
#include "phantom/core/graph.h"
#include "phantom/core/kernels.h"
#include "phantom/core/memory.h"
#include "phantom/core/session.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
using phantom::result;
using phantom::Status;

namespace {

struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared_bytes;
  void* stream;
};
thread_local std::vector<CallConfiguration> configurations;

struct Shape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
};

cudaError_t launch(phantom::Kernel* kernel, const Shape& shape, void** arguments, cudaStream_t stream) {
  const phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr) return result(Status::invalid_handle);
  if (kernel == nullptr) return result(Status::invalid_device_function);
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return result(Status::invalid_configuration);
  const std::int64_t threads = std::int64_t{shape.block.x} * shape.block.y * shape.block.z;
  Status status = phantom::check_launch(*kernel, threads, static_cast<std::int64_t>(shape.shared_bytes));
  if (status != Status::success) return result(status);
  phantom::submit_kernel(behind);
  status = phantom::launched(kernel, arguments);
  return result(status == Status::not_found ? Status::invalid_device_function : status);
}

// A kernel's handle stands where a host function may stand, too.
phantom::Kernel* kernel_behind(const void* function) { return phantom::kernel_of(function); }

}  // namespace

PHANTOM_EXPORT void** __cudaRegisterFatBinary(void* image) {
  return static_cast<void**>(phantom::register_fat_binary(image));
}
PHANTOM_EXPORT void __cudaRegisterFatBinaryEnd(void** /*fat_binary*/) {}
PHANTOM_EXPORT void __cudaUnregisterFatBinary(void** /*fat_binary*/) {}

PHANTOM_EXPORT void __cudaRegisterFunction(void** fat_binary, const char* host_function, char* /*device_function*/,
                                           const char* device_name, int /*thread_limit*/, uint3* /*thread*/,
                                           uint3* /*block*/, dim3* /*block_size*/, dim3* /*grid_size*/,
                                           int* /*warp_size*/) {
  phantom::register_kernel(fat_binary, host_function, device_name);
}

PHANTOM_EXPORT void __cudaRegisterVar(void** fat_binary, char* host_variable, char* /*device_address*/,
                                      const char* device_name, int /*ext*/, std::size_t bytes, int /*constant*/,
                                      int /*global*/) {
  phantom::register_variable(fat_binary, host_variable, device_name, static_cast<std::int64_t>(bytes));
}

PHANTOM_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, void* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

PHANTOM_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                                      void* stream) {
  if (configurations.empty()) return result(cudaErrorMissingConfiguration);
  const CallConfiguration call = configurations.back();
  configurations.pop_back();
  *grid = call.grid;
  *block = call.block;
  *shared_bytes = call.shared_bytes;
  *static_cast<void**>(stream) = call.stream;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  phantom::Kernel* behind = phantom::kernel_of(host_function);
  if (behind == nullptr) return result(cudaErrorInvalidDeviceFunction);
  *kernel = reinterpret_cast<cudaKernel_t>(behind);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                              std::size_t shared_bytes, cudaStream_t stream) {
  return launch(reinterpret_cast<phantom::Kernel*>(kernel), {grid, block, shared_bytes}, arguments, stream);
}

PHANTOM_EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                                   std::size_t shared_bytes, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

PHANTOM_EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                            std::size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel_behind(function), {grid, block, shared_bytes}, arguments, stream);
}

PHANTOM_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                       std::size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel_behind(function), {grid, block, shared_bytes}, arguments, stream);
}

PHANTOM_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function,
                                               void** arguments) {
  if (configuration == nullptr) return result(Status::invalid_value);
  return launch(kernel_behind(function),
                {configuration->gridDim, configuration->blockDim, configuration->dynamicSmemBytes}, arguments,
                configuration->stream);
}

PHANTOM_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (attributes == nullptr) return result(Status::invalid_value);
  phantom::Kernel* kernel = kernel_behind(function);
  if (kernel == nullptr) return result(Status::invalid_device_function);
  const Status status = phantom::read_facts(*kernel);
  if (status != Status::success) {
    return result(status == Status::not_found ? Status::invalid_device_function : status);
  }
  const phantom::KernelFacts& facts = kernel->facts;
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = facts.max_threads_per_block;
  attributes->numRegs = facts.registers;
  attributes->sharedSizeBytes = static_cast<std::size_t>(facts.static_shared_bytes);
  attributes->constSizeBytes = static_cast<std::size_t>(facts.constant_bytes);
  attributes->localSizeBytes = static_cast<std::size_t>(facts.local_bytes);
  const phantom::CardFacts& card = phantom::session().card;
  // Code that chooses by it, as CUB's, knows only what it was compiled for.
  attributes->ptxVersion = attributes->binaryVersion =
      facts.capability != 0 ? facts.capability : 10 * card.major + card.minor;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel->max_dynamic_shared_bytes);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  phantom::Kernel* kernel = kernel_behind(function);
  if (kernel == nullptr) return result(Status::invalid_device_function);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const phantom::CardFacts& card = phantom::session().card;
    const std::int64_t most = phantom::architecture_of(card.major, card.minor).shared_memory_per_block_optin -
                              phantom::facts_of(*kernel).static_shared_bytes;
    if (value < 0 || value > most) return result(Status::invalid_value);
    kernel->max_dynamic_shared_bytes = value;
  }
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaFuncSetCacheConfig(const void* /*function*/, cudaFuncCache /*configuration*/) {
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                                  int threads, std::size_t shared_bytes,
                                                                                  unsigned int /*flags*/) {
  if (blocks == nullptr) return result(Status::invalid_value);
  phantom::Kernel* kernel = kernel_behind(function);
  if (kernel == nullptr) return result(Status::invalid_device_function);
  *blocks = phantom::occupancy(phantom::facts_of(*kernel), threads, static_cast<std::int64_t>(shared_bytes));
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                         std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

PHANTOM_EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  if (address == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  std::int64_t bytes = 0;
  *address = phantom::variable_address(symbol, phantom::current_card(), &bytes);
  return *address == nullptr ? result(cudaErrorInvalidSymbol) : cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaGetSymbolSize(std::size_t* size, const void* symbol) {
  if (size == nullptr) return result(Status::invalid_value);
  std::int64_t bytes = 0;
  if (phantom::variable_address(symbol, phantom::current_card(), &bytes) == nullptr) {
    return result(cudaErrorInvalidSymbol);
  }
  *size = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, std::size_t bytes,
                                                   std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  void* address = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&address, symbol); error != cudaSuccess) return error;
  return cudaMemcpyAsync(static_cast<char*>(address) + offset, source, bytes, kind, stream);
}

PHANTOM_EXPORT cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, std::size_t bytes,
                                              std::size_t offset, cudaMemcpyKind kind) {
  return cudaMemcpyToSymbolAsync(symbol, source, bytes, offset, kind, nullptr);
}

PHANTOM_EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void* target, const void* symbol, std::size_t bytes,
                                                     std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  void* address = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&address, symbol); error != cudaSuccess) return error;
  return cudaMemcpyAsync(target, static_cast<char*>(address) + offset, bytes, kind, stream);
}

PHANTOM_EXPORT cudaError_t cudaMemcpyFromSymbol(void* target, const void* symbol, std::size_t bytes, std::size_t offset,
                                                cudaMemcpyKind kind) {
  return cudaMemcpyFromSymbolAsync(target, symbol, bytes, offset, kind, nullptr);
}
