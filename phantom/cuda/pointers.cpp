// What the driver says of a pointer.
#include "phantom/core/memory.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::MemoryKind;

namespace {

bool on_card(const phantom::Block& block) {
  return block.kind == MemoryKind::device || block.kind == MemoryKind::virtual_range;
}

template <typename T>
CUresult answer(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

CUresult describe(void* data, CUpointer_attribute attribute, CUdeviceptr address, const phantom::Block& block) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (block.kind == MemoryKind::virtual_range) return answer<CUcontext>(data, nullptr);
      return answer(data, phantom::handle_of(phantom::primary_context(block.card)));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(
          data, static_cast<unsigned int>(on_card(block) || block.kind == MemoryKind::managed ? CU_MEMORYTYPE_DEVICE
                                                                                              : CU_MEMORYTYPE_HOST));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (on_card(block)) return CUDA_ERROR_INVALID_VALUE;
      return answer(data, phantom::pointer(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer(data, static_cast<unsigned long long>(block.base));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(data, static_cast<unsigned char>(block.kind == MemoryKind::managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer(data, block.card);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer(data, static_cast<unsigned char>(block.kind == MemoryKind::device));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer(data, static_cast<CUdeviceptr>(block.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer(data, static_cast<size_t>(block.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer(data, static_cast<unsigned char>(1));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer(data, std::uint64_t{CU_MEM_HANDLE_TYPE_NONE});
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer(data, static_cast<int>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return answer(data, static_cast<unsigned char>(0));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<CUmemoryPool>(data, nullptr);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

PHANTOM_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto block = phantom::find_block(phantom::pointer(address));
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  return describe(data, attribute, address, *block);
}

// Unlike the one above it succeeds for memory that is not CUDA's, with zeros.
PHANTOM_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                               CUdeviceptr address) {
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto block = phantom::find_block(phantom::pointer(address));
  for (unsigned int i = 0; i < count; ++i) {
    if (block && describe(data[i], attributes[i], address, *block) == CUDA_SUCCESS) continue;
    const int attribute = static_cast<int>(attributes[i]);
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      answer(data[i], -2);  // what the driver gives for memory it does not know
    } else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      answer(data[i], 0U);
    } else if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED || attribute == CU_POINTER_ATTRIBUTE_MAPPED ||
               attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
               attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
      answer(data[i], static_cast<unsigned char>(0));
    } else {
      answer<void*>(data[i], nullptr);
    }
  }
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  return phantom::find_block(phantom::pointer(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
