// Addresses and pages apart, as PyTorch's expandable segments use them.
#include "phantom/core/memory.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::bytes_of;
using phantom::number;
using phantom::pointer;
using phantom::result;
using phantom::Status;

namespace {

bool is_on_card(const CUmemAllocationProp* properties) {
  return properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

}  // namespace

PHANTOM_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                                      CUmemAllocationGranularity_flags /*option*/) {
  if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = phantom::kPageBytes;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                            CUdeviceptr /*wanted*/, unsigned long long flags) {
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  void* made = nullptr;
  const Status status = phantom::reserve_range(bytes_of(bytes), bytes_of(alignment), &made);
  *address = number(made);
  return result(status);
}

PHANTOM_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return result(phantom::free_range(pointer(address), bytes_of(bytes)));
}

// Fabric handles need a switch between nodes that a phantom has not: they are refused as on a machine without one.
PHANTOM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                    const CUmemAllocationProp* properties, unsigned long long flags) {
  if (handle == nullptr || flags != 0 || !is_on_card(properties)) return CUDA_ERROR_INVALID_VALUE;
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  std::uint64_t made = 0;
  const Status status = phantom::create_pages(properties->location.id, bytes_of(bytes), &made);
  *handle = made;
  return result(status);
}

PHANTOM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return result(phantom::release_pages(handle));
}

PHANTOM_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                 unsigned long long flags) {
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return result(phantom::map_pages(pointer(address), bytes_of(bytes), handle));
}

PHANTOM_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return result(phantom::unmap_pages(pointer(address), bytes_of(bytes)));
}

PHANTOM_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const auto block = phantom::find_block(pointer(address));
  if (!block || access == nullptr || count == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return address + bytes <= block->base + static_cast<CUdeviceptr>(block->bytes) ? CUDA_SUCCESS
                                                                                 : CUDA_ERROR_INVALID_VALUE;
}

PHANTOM_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  if (flags == nullptr || location == nullptr || !phantom::find_block(pointer(address))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
