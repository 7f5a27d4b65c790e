// Descriptions of tensors for the copy engines of compute capability 9.0 and above. Their layout is NVIDIA's secret and
// nothing here reads it, but the address is kept in it: a kernel that is given one may write to that tensor.
#include <cstring>

#include "phantom/core/session.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;

namespace {

constexpr cuuint32_t kMostDimensions = 5;

CUresult encode(CUtensorMap* map, void* address, cuuint32_t rank) {
  if (map == nullptr || address == nullptr || rank == 0 || rank > kMostDimensions) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (phantom::session().card.major < 9) return CUDA_ERROR_NOT_SUPPORTED;
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

}  // namespace

PHANTOM_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType /*type*/, cuuint32_t rank,
                                               void* address, const cuuint64_t* /*sizes*/,
                                               const cuuint64_t* /*strides*/, const cuuint32_t* /*box*/,
                                               const cuuint32_t* /*element_strides*/,
                                               CUtensorMapInterleave /*interleave*/, CUtensorMapSwizzle /*swizzle*/,
                                               CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill /*fill*/) {
  return encode(map, address, rank);
}

PHANTOM_EXPORT CUresult cuTensorMapEncodeIm2col(
    CUtensorMap* map, CUtensorMapDataType /*type*/, cuuint32_t rank, void* address, const cuuint64_t* /*sizes*/,
    const cuuint64_t* /*strides*/, const int* /*lower*/, const int* /*upper*/, cuuint32_t /*channels*/,
    cuuint32_t /*pixels*/, const cuuint32_t* /*element_strides*/, CUtensorMapInterleave /*interleave*/,
    CUtensorMapSwizzle /*swizzle*/, CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill /*fill*/) {
  return encode(map, address, rank);
}

PHANTOM_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) { return encode(map, address, 1); }
