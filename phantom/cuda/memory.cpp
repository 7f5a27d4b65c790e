// Device, pinned and managed memory, and what the driver says of a pointer.
#include "phantom/core/memory.h"

#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::bytes_of;
using phantom::MemoryKind;
using phantom::number;
using phantom::pointer;
using phantom::result;
using phantom::Status;

namespace {

bool has_context() { return phantom::current_context() != nullptr; }

CUresult make_host(MemoryKind kind, void** address, size_t bytes) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return result(phantom::allocate_host(kind, phantom::current_card(), bytes_of(bytes), address));
}

}  // namespace

PHANTOM_EXPORT CUresult cuMemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  const phantom::MemoryInfo info = phantom::memory_info(phantom::current_card());
  *free = static_cast<size_t>(info.free_bytes);
  *total = static_cast<size_t>(info.total_bytes);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  void* made = nullptr;
  const Status status = phantom::allocate_device(phantom::current_card(), bytes_of(bytes), &made);
  *address = number(made);
  return result(status);
}

PHANTOM_EXPORT CUresult cuMemAllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                        unsigned int /*element_bytes*/) {
  constexpr size_t kPitch = 512;
  if (pitch == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return cuMemAlloc(address, *pitch * height);
}

PHANTOM_EXPORT CUresult cuMemFree(CUdeviceptr address) { return result(phantom::free_device(pointer(address))); }

PHANTOM_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const auto block = phantom::find_block(pointer(address));
  if (!block) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = block->base;
  if (bytes != nullptr) *bytes = static_cast<size_t>(block->bytes);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int /*flags*/) {
  void* made = nullptr;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = make_host(MemoryKind::managed, &made, bytes);
  *address = number(made);
  return error;
}

PHANTOM_EXPORT CUresult cuMemAllocHost(void** address, size_t bytes) {
  return make_host(MemoryKind::pinned, address, bytes);
}

PHANTOM_EXPORT CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int /*flags*/) {
  return make_host(MemoryKind::pinned, address, bytes);
}

PHANTOM_EXPORT CUresult cuMemFreeHost(void* address) { return result(phantom::free_host(address)); }

PHANTOM_EXPORT CUresult cuMemHostRegister(void* address, size_t bytes, unsigned int /*flags*/) {
  return result(phantom::register_host(address, bytes_of(bytes)));
}

PHANTOM_EXPORT CUresult cuMemHostUnregister(void* address) { return result(phantom::unregister_host(address)); }

PHANTOM_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned int /*flags*/) {
  if (device == nullptr || !phantom::find_block(host)) return CUDA_ERROR_INVALID_VALUE;
  *device = number(host);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  if (flags == nullptr || !phantom::find_block(host)) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

// Advice about managed memory changes where it lies, not what it is.
PHANTOM_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t /*bytes*/, CUmem_advise /*advice*/,
                                    CUmemLocation /*location*/) {
  return phantom::find_block(pointer(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

PHANTOM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t /*bytes*/, CUmemLocation /*location*/,
                                           unsigned int /*flags*/, CUstream /*stream*/) {
  return phantom::find_block(pointer(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
