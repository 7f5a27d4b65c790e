// Plans are numbers. How much memory they work in only the real library knows; a bound is known.
#include <cufft.h>
#include <cufftXt.h>

#include <atomic>
#include <vector>

#include "phantom/core/visibility.h"
#include "phantom/cufft/work_area.h"
#include "phantom/generate/generated.h"

namespace {

using Sizes = std::vector<long long>;

cufftResult number_plan(cufftHandle* plan) {
  static std::atomic<cufftHandle> last{0};
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  *plan = ++last;
  return CUFFT_SUCCESS;
}

constexpr std::int64_t kComplexBytes = 8, kDoubleComplexBytes = 16, kHalfComplexBytes = 4;

std::int64_t complex_bytes(cufftType type) {
  return type == CUFFT_D2Z || type == CUFFT_Z2D || type == CUFFT_Z2Z ? kDoubleComplexBytes : kComplexBytes;
}

std::int64_t complex_bytes(cudaDataType type) {
  switch (static_cast<int>(type)) {
    case CUDA_R_64F:
    case CUDA_C_64F:
      return kDoubleComplexBytes;
    case CUDA_R_16F:
    case CUDA_C_16F:
    case CUDA_R_16BF:
    case CUDA_C_16BF:
      return kHalfComplexBytes;
    default:
      return kComplexBytes;
  }
}

template <class Number>
Sizes sizes_of(int rank, const Number* sizes) {
  if (sizes == nullptr || rank < 1 || rank > 3) return {};
  return {sizes, sizes + rank};
}

/// The size of a plan's work area, which the caller provides unless the plan is told to take it itself.
template <class Type>
cufftResult tell(const Sizes& sizes, Type type, long long batch, size_t* bytes) {
  if (bytes == nullptr) return CUFFT_INVALID_VALUE;
  const std::int64_t most = vramfit::phantom::cufft::most_bytes(sizes, batch, complex_bytes(type));
  *bytes = static_cast<size_t>(vramfit::phantom::generated::workspace("cuFFT plan", most));
  return CUFFT_SUCCESS;
}

cufftResult plan_with_own_area(cufftHandle* plan, const Sizes& sizes, cufftType type, long long batch) {
  vramfit::phantom::generated::workspace("cuFFT plan of its own",
                                         vramfit::phantom::cufft::most_bytes(sizes, batch, complex_bytes(type)), true);
  return number_plan(plan);
}

}  // namespace

PHANTOM_EXPORT cufftResult cufftCreate(cufftHandle* plan) { return number_plan(plan); }
PHANTOM_EXPORT cufftResult cufftDestroy(cufftHandle) { return CUFFT_SUCCESS; }

PHANTOM_EXPORT cufftResult cufftPlan1d(cufftHandle* plan, int x, cufftType type, int batch) {
  return plan_with_own_area(plan, {x}, type, batch);
}

PHANTOM_EXPORT cufftResult cufftPlan2d(cufftHandle* plan, int x, int y, cufftType type) {
  return plan_with_own_area(plan, {x, y}, type, 1);
}

PHANTOM_EXPORT cufftResult cufftPlan3d(cufftHandle* plan, int x, int y, int z, cufftType type) {
  return plan_with_own_area(plan, {x, y, z}, type, 1);
}

PHANTOM_EXPORT cufftResult cufftPlanMany(cufftHandle* plan, int rank, int* sizes, int*, int, int, int*, int, int,
                                         cufftType type, int batch) {
  return plan_with_own_area(plan, sizes_of(rank, sizes), type, batch);
}

PHANTOM_EXPORT cufftResult cufftMakePlan1d(cufftHandle, int x, cufftType type, int batch, size_t* bytes) {
  return tell({x}, type, batch, bytes);
}

PHANTOM_EXPORT cufftResult cufftMakePlan2d(cufftHandle, int x, int y, cufftType type, size_t* bytes) {
  return tell({x, y}, type, 1, bytes);
}

PHANTOM_EXPORT cufftResult cufftMakePlan3d(cufftHandle, int x, int y, int z, cufftType type, size_t* bytes) {
  return tell({x, y, z}, type, 1, bytes);
}

PHANTOM_EXPORT cufftResult cufftMakePlanMany(cufftHandle, int rank, int* sizes, int*, int, int, int*, int, int,
                                             cufftType type, int batch, size_t* bytes) {
  return tell(sizes_of(rank, sizes), type, batch, bytes);
}

PHANTOM_EXPORT cufftResult cufftMakePlanMany64(cufftHandle, int rank, long long* sizes, long long*, long long,
                                               long long, long long*, long long, long long, cufftType type,
                                               long long batch, size_t* bytes) {
  return tell(sizes_of(rank, sizes), type, batch, bytes);
}

// PyTorch's way to all plans.
PHANTOM_EXPORT cufftResult cufftXtMakePlanMany(cufftHandle, int rank, long long* sizes, long long*, long long,
                                               long long, cudaDataType, long long*, long long, long long, cudaDataType,
                                               long long batch, size_t* bytes, cudaDataType type) {
  return tell(sizes_of(rank, sizes), type, batch, bytes);
}

PHANTOM_EXPORT cufftResult cufftEstimate1d(int x, cufftType type, int batch, size_t* bytes) {
  return tell({x}, type, batch, bytes);
}

PHANTOM_EXPORT cufftResult cufftEstimate2d(int x, int y, cufftType type, size_t* bytes) {
  return tell({x, y}, type, 1, bytes);
}

PHANTOM_EXPORT cufftResult cufftEstimate3d(int x, int y, int z, cufftType type, size_t* bytes) {
  return tell({x, y, z}, type, 1, bytes);
}

PHANTOM_EXPORT cufftResult cufftEstimateMany(int rank, int* sizes, int*, int, int, int*, int, int, cufftType type,
                                             int batch, size_t* bytes) {
  return tell(sizes_of(rank, sizes), type, batch, bytes);
}

PHANTOM_EXPORT cufftResult cufftGetVersion(int* version) {
  if (version == nullptr) return CUFFT_INVALID_VALUE;
  *version = CUFFT_VERSION;
  return CUFFT_SUCCESS;
}

PHANTOM_EXPORT cufftResult cufftGetProperty(libraryPropertyType type, int* value) {
  if (value == nullptr) return CUFFT_INVALID_VALUE;
  switch (type) {
    case MAJOR_VERSION:
      *value = CUFFT_VER_MAJOR;
      return CUFFT_SUCCESS;
    case MINOR_VERSION:
      *value = CUFFT_VER_MINOR;
      return CUFFT_SUCCESS;
    case PATCH_LEVEL:
      *value = CUFFT_VER_PATCH;
      return CUFFT_SUCCESS;
  }
  return CUFFT_INVALID_VALUE;
}
