// What cuRAND says about itself; all else is generated.
#include <curand.h>

#include "phantom/core/visibility.h"

PHANTOM_EXPORT curandStatus_t curandGetVersion(int* version) {
  if (version == nullptr) return CURAND_STATUS_OUT_OF_RANGE;
  *version = CURAND_VERSION;
  return CURAND_STATUS_SUCCESS;
}

PHANTOM_EXPORT curandStatus_t curandGetProperty(libraryPropertyType type, int* value) {
  if (value == nullptr) return CURAND_STATUS_OUT_OF_RANGE;
  switch (type) {
    case MAJOR_VERSION:
      *value = CURAND_VER_MAJOR;
      return CURAND_STATUS_SUCCESS;
    case MINOR_VERSION:
      *value = CURAND_VER_MINOR;
      return CURAND_STATUS_SUCCESS;
    case PATCH_LEVEL:
      *value = CURAND_VER_PATCH;
      return CURAND_STATUS_SUCCESS;
  }
  return CURAND_STATUS_OUT_OF_RANGE;
}
