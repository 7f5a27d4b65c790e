// Stream-ordered memory, and memory of other processes.
#include <cstring>

#include "phantom/core/memory_pools.h"
#include "phantom/core/shared_memory.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::bytes_of;
using phantom::MemoryPool;
using phantom::number;
using phantom::pointer;
using phantom::result;
using phantom::SharedHandle;
using phantom::Status;

namespace {

MemoryPool* pool_of(CUmemoryPool handle) { return reinterpret_cast<MemoryPool*>(handle); }

CUresult give(CUmemoryPool* out, MemoryPool* pool) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUmemoryPool>(pool);
  return pool == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr* address, size_t bytes, MemoryPool* pool, CUstream stream) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (phantom::stream_behind(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  void* made = nullptr;
  const Status status = phantom::allocate_from_pool(pool, bytes_of(bytes), &made);
  *address = number(made);
  return result(status);
}

template <class Handle>
SharedHandle from(const Handle& handle) {
  static_assert(sizeof(Handle) == sizeof(SharedHandle));
  SharedHandle shared{};
  std::memcpy(shared.data(), &handle, sizeof handle);
  return shared;
}

}  // namespace

PHANTOM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, phantom::current_pool(phantom::current_card()), stream);
}
PHANTOM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                                CUstream stream) {
  return allocate(address, bytes, pool_of(pool), stream);
}
PHANTOM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  if (phantom::stream_behind(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return result(phantom::free_to_pool(pointer(address)));
}

PHANTOM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return give(pool, phantom::default_pool(device));
}
PHANTOM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return give(pool, phantom::current_pool(device));
}
PHANTOM_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return result(phantom::set_current_pool(device, pool_of(pool)));
}
PHANTOM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (pool == nullptr || properties == nullptr || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MemoryPool* made = nullptr;
  const Status status = phantom::create_pool(properties->location.id, &made);
  *pool = reinterpret_cast<CUmemoryPool>(made);
  return result(status);
}
PHANTOM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) { return result(phantom::destroy_pool(pool_of(pool))); }
PHANTOM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t /*kept*/) {
  return phantom::is_pool(pool_of(pool)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PHANTOM_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* /*access*/, size_t /*count*/) {
  return phantom::is_pool(pool_of(pool)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PHANTOM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return result(phantom::pool_attribute(pool_of(pool), static_cast<int>(attribute), value));
}
PHANTOM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return result(phantom::set_pool_attribute(pool_of(pool), static_cast<int>(attribute), value));
}

PHANTOM_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedHandle shared{};
  const Status status = phantom::share_memory(pointer(address), &shared);
  std::memcpy(handle, shared.data(), sizeof *handle);
  return result(status);
}
PHANTOM_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int /*flags*/) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* opened = nullptr;
  const Status status = phantom::open_shared_memory(from(handle), &opened);
  *address = number(opened);
  return result(status);
}
PHANTOM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return result(phantom::close_shared_memory(pointer(address)));
}
PHANTOM_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedHandle shared{};
  const Status status = phantom::share_event(phantom::event_of(event), &shared);
  std::memcpy(handle, shared.data(), sizeof *handle);
  return result(status);
}
PHANTOM_EXPORT CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  phantom::Event* opened = nullptr;
  const Status status = phantom::open_shared_event(from(handle), phantom::current_card(), &opened);
  *event = reinterpret_cast<CUevent>(opened);
  return result(status);
}
