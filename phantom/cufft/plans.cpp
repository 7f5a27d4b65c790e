// Plans are numbers. Their work areas are taken as empty, and counted as unknown.
#include <cufft.h>

#include <atomic>

#include "phantom/core/visibility.h"
#include "phantom/generate/generated.h"

namespace {

cufftResult number_plan(cufftHandle* plan) {
  static std::atomic<cufftHandle> last{0};
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  *plan = ++last;
  return CUFFT_SUCCESS;
}

cufftResult plan_with_own_area(cufftHandle* plan, const char* function) {
  vramfit::phantom::generated::unknown(function);
  return number_plan(plan);
}

}  // namespace

PHANTOM_EXPORT cufftResult cufftCreate(cufftHandle* plan) { return number_plan(plan); }
PHANTOM_EXPORT cufftResult cufftDestroy(cufftHandle) { return CUFFT_SUCCESS; }

PHANTOM_EXPORT cufftResult cufftPlan1d(cufftHandle* plan, int, cufftType, int) {
  return plan_with_own_area(plan, "cufftPlan1d: work area taken as 0");
}

PHANTOM_EXPORT cufftResult cufftPlan2d(cufftHandle* plan, int, int, cufftType) {
  return plan_with_own_area(plan, "cufftPlan2d: work area taken as 0");
}

PHANTOM_EXPORT cufftResult cufftPlan3d(cufftHandle* plan, int, int, int, cufftType) {
  return plan_with_own_area(plan, "cufftPlan3d: work area taken as 0");
}

PHANTOM_EXPORT cufftResult cufftPlanMany(cufftHandle* plan, int, int*, int*, int, int, int*, int, int, cufftType, int) {
  return plan_with_own_area(plan, "cufftPlanMany: work area taken as 0");
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
