#include "phantom/core/memory.h"

#include <cstring>

#include "phantom/core/contents.h"
#include "phantom/core/graph.h"
#include "phantom/core/session.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
using phantom::MemoryKind;
using phantom::result;
using phantom::Status;

namespace {

std::int64_t bytes_of(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

cudaError_t make_host(MemoryKind kind, void** address, std::size_t bytes) {
  if (address == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  return result(phantom::allocate_host(kind, phantom::current_card(), bytes_of(bytes), address));
}

cudaError_t submit_copy(cudaStream_t stream, void* target, const void* source, std::size_t bytes) {
  return result(phantom::submit(phantom::stream_behind(stream), phantom::NodeKind::copy,
                                [=] { return phantom::copy(target, source, bytes_of(bytes)); }));
}

cudaError_t submit_rows(cudaStream_t stream, void* target, std::size_t target_pitch, const void* source,
                        std::size_t source_pitch, std::size_t width, std::size_t rows) {
  return result(phantom::submit(phantom::stream_behind(stream), phantom::NodeKind::copy, [=] {
    return phantom::copy_rows(target, bytes_of(target_pitch), source, bytes_of(source_pitch), bytes_of(width),
                              bytes_of(rows));
  }));
}

cudaError_t submit_fill(cudaStream_t stream, void* target, int value, std::size_t bytes) {
  return result(phantom::submit(phantom::stream_behind(stream), phantom::NodeKind::fill, [=] {
    return phantom::fill(target, static_cast<unsigned char>(value), 1, bytes_of(bytes));
  }));
}

}  // namespace

PHANTOM_EXPORT cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (address == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  return result(phantom::allocate_device(phantom::current_card(), bytes_of(bytes), address));
}

PHANTOM_EXPORT cudaError_t cudaFree(void* address) {
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  return result(phantom::free_device(address));
}

PHANTOM_EXPORT cudaError_t cudaMallocPitch(void** address, std::size_t* pitch, std::size_t width, std::size_t height) {
  constexpr std::size_t kPitch = 512;  // cudaDeviceProp::texturePitchAlignment times 16, as seen on current cards
  if (pitch == nullptr) return result(Status::invalid_value);
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return cudaMalloc(address, *pitch * height);
}

PHANTOM_EXPORT cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned int /*flags*/) {
  return make_host(MemoryKind::managed, address, bytes);
}

PHANTOM_EXPORT cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned int /*flags*/) {
  return make_host(MemoryKind::pinned, address, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return make_host(MemoryKind::pinned, address, bytes);
}

PHANTOM_EXPORT cudaError_t cudaFreeHost(void* address) { return result(phantom::free_host(address)); }

PHANTOM_EXPORT cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned int /*flags*/) {
  return result(phantom::register_host(address, bytes_of(bytes)));
}

PHANTOM_EXPORT cudaError_t cudaHostUnregister(void* address) { return result(phantom::unregister_host(address)); }

PHANTOM_EXPORT cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int /*flags*/) {
  if (device == nullptr || !phantom::find_block(host)) return result(Status::invalid_value);
  *device = host;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  if (flags == nullptr || !phantom::find_block(host)) return result(Status::invalid_value);
  *flags = cudaHostAllocMapped;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (free == nullptr || total == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  const phantom::MemoryInfo info = phantom::memory_info(phantom::current_card());
  *free = static_cast<std::size_t>(info.free_bytes);
  *total = static_cast<std::size_t>(info.total_bytes);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  if (attributes == nullptr) return result(Status::invalid_value);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->device = -1;
  const auto block = phantom::find_block(address);
  if (!block) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    return cudaSuccess;
  }
  void* const pointer = const_cast<void*>(address);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  const bool on_card = block->kind == MemoryKind::device || block->kind == MemoryKind::virtual_range;
  attributes->type = on_card                              ? cudaMemoryTypeDevice
                     : block->kind == MemoryKind::managed ? cudaMemoryTypeManaged
                                                          : cudaMemoryTypeHost;
  attributes->device = block->card;
  attributes->devicePointer = pointer;
  attributes->hostPointer = on_card ? nullptr : pointer;
  return cudaSuccess;
}

// The host waits for a copy without a stream, unless both sides are on a card; nothing can read that difference here.
PHANTOM_EXPORT cudaError_t cudaMemcpy(void* target, const void* source, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  return submit_copy(nullptr, target, source, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind /*kind*/,
                                           cudaStream_t stream) {
  return submit_copy(stream, target, source, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMemcpyPeer(void* target, int /*to*/, const void* source, int /*from*/,
                                          std::size_t bytes) {
  return submit_copy(nullptr, target, source, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMemcpyPeerAsync(void* target, int /*to*/, const void* source, int /*from*/,
                                               std::size_t bytes, cudaStream_t stream) {
  return submit_copy(stream, target, source, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMemcpy2D(void* target, std::size_t target_pitch, const void* source,
                                        std::size_t source_pitch, std::size_t width, std::size_t height,
                                        cudaMemcpyKind /*kind*/) {
  return submit_rows(nullptr, target, target_pitch, source, source_pitch, width, height);
}

PHANTOM_EXPORT cudaError_t cudaMemcpy2DAsync(void* target, std::size_t target_pitch, const void* source,
                                             std::size_t source_pitch, std::size_t width, std::size_t height,
                                             cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  return submit_rows(stream, target, target_pitch, source, source_pitch, width, height);
}

PHANTOM_EXPORT cudaError_t cudaMemset(void* target, int value, std::size_t bytes) {
  return submit_fill(nullptr, target, value, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream) {
  return submit_fill(stream, target, value, bytes);
}

PHANTOM_EXPORT cudaError_t cudaMemset2DAsync(void* target, std::size_t pitch, int value, std::size_t width,
                                             std::size_t height, cudaStream_t stream) {
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t error = submit_fill(stream, static_cast<char*>(target) + row * pitch, value, width);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaMemset2D(void* target, std::size_t pitch, int value, std::size_t width,
                                        std::size_t height) {
  return cudaMemset2DAsync(target, pitch, value, width, height, nullptr);
}
