// Stream-ordered memory, and memory of other processes.
#include <cstring>

#include "phantom/core/memory_pools.h"
#include "phantom/core/shared_memory.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
using phantom::MemoryPool;
using phantom::result;
using phantom::SharedHandle;
using phantom::Status;

namespace {

MemoryPool* pool_of(cudaMemPool_t handle) { return reinterpret_cast<MemoryPool*>(handle); }

cudaError_t give(cudaMemPool_t* out, MemoryPool* pool) {
  if (out == nullptr) return result(Status::invalid_value);
  *out = reinterpret_cast<cudaMemPool_t>(pool);
  return pool == nullptr ? result(Status::invalid_device) : cudaSuccess;
}

cudaError_t allocate(void** address, std::size_t bytes, MemoryPool* pool, cudaStream_t stream) {
  if (address == nullptr) return result(Status::invalid_value);
  if (phantom::stream_behind(stream) == nullptr) return result(Status::invalid_handle);
  return result(phantom::allocate_from_pool(pool, static_cast<std::int64_t>(bytes), address));
}

template <class Handle>
SharedHandle from(const Handle& handle) {
  static_assert(sizeof(Handle) == sizeof(SharedHandle));
  SharedHandle shared{};
  std::memcpy(shared.data(), &handle, sizeof handle);
  return shared;
}

}  // namespace

PHANTOM_EXPORT cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t stream) {
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  return allocate(address, bytes, phantom::current_pool(phantom::current_card()), stream);
}
PHANTOM_EXPORT cudaError_t cudaMallocFromPoolAsync(void** address, std::size_t bytes, cudaMemPool_t pool,
                                                   cudaStream_t stream) {
  return allocate(address, bytes, pool_of(pool), stream);
}
PHANTOM_EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  if (phantom::stream_behind(stream) == nullptr) return result(Status::invalid_handle);
  return result(phantom::free_to_pool(address));
}

PHANTOM_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int card) {
  return give(pool, phantom::default_pool(card));
}
PHANTOM_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int card) {
  return give(pool, phantom::current_pool(card));
}
PHANTOM_EXPORT cudaError_t cudaDeviceSetMemPool(int card, cudaMemPool_t pool) {
  return result(phantom::set_current_pool(card, pool_of(pool)));
}
PHANTOM_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  if (pool == nullptr || properties == nullptr || properties->location.type != cudaMemLocationTypeDevice) {
    return result(Status::invalid_value);
  }
  MemoryPool* made = nullptr;
  const Status status = phantom::create_pool(properties->location.id, &made);
  *pool = reinterpret_cast<cudaMemPool_t>(made);
  return result(status);
}
PHANTOM_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return result(phantom::destroy_pool(pool_of(pool)));
}
PHANTOM_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t /*kept*/) {
  return phantom::is_pool(pool_of(pool)) ? cudaSuccess : result(Status::invalid_value);
}
PHANTOM_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* /*access*/,
                                                std::size_t /*count*/) {
  return phantom::is_pool(pool_of(pool)) ? cudaSuccess : result(Status::invalid_value);
}
PHANTOM_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return result(phantom::pool_attribute(pool_of(pool), static_cast<int>(attribute), value));
}
PHANTOM_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return result(phantom::set_pool_attribute(pool_of(pool), static_cast<int>(attribute), value));
}

PHANTOM_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  if (handle == nullptr) return result(Status::invalid_value);
  SharedHandle shared{};
  const Status status = phantom::share_memory(address, &shared);
  std::memcpy(handle, shared.data(), sizeof *handle);
  return result(status);
}
PHANTOM_EXPORT cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int /*flags*/) {
  if (address == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  return result(phantom::open_shared_memory(from(handle), address));
}
PHANTOM_EXPORT cudaError_t cudaIpcCloseMemHandle(void* address) {
  return result(phantom::close_shared_memory(address));
}
PHANTOM_EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  if (handle == nullptr) return result(Status::invalid_value);
  SharedHandle shared{};
  const Status status = phantom::share_event(reinterpret_cast<phantom::Event*>(event), &shared);
  std::memcpy(handle, shared.data(), sizeof *handle);
  return result(status);
}
PHANTOM_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  if (event == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  phantom::Event* opened = nullptr;
  const Status status = phantom::open_shared_event(from(handle), phantom::current_card(), &opened);
  *event = reinterpret_cast<cudaEvent_t>(opened);
  return result(status);
}
