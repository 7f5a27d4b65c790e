// What cuDNN says about itself.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdio>

#include "phantom/core/visibility.h"

PHANTOM_EXPORT size_t cudnnGetVersion() { return CUDNN_VERSION; }
PHANTOM_EXPORT size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
PHANTOM_EXPORT size_t cudnnGetMaxDeviceVersion() { return CUDNN_MAX_DEVICE_VERSION; }

PHANTOM_EXPORT cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  if (value == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  switch (type) {
    case MAJOR_VERSION:
      *value = CUDNN_MAJOR;
      return CUDNN_STATUS_SUCCESS;
    case MINOR_VERSION:
      *value = CUDNN_MINOR;
      return CUDNN_STATUS_SUCCESS;
    case PATCH_LEVEL:
      *value = CUDNN_PATCHLEVEL;
      return CUDNN_STATUS_SUCCESS;
  }
  return CUDNN_STATUS_BAD_PARAM;
}

PHANTOM_EXPORT const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (static_cast<int>(status)) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER:
      return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE:
      return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
      return "CUDNN_STATUS";
  }
}

PHANTOM_EXPORT void cudnnGetLastErrorString(char* message, size_t room) {
  if (message != nullptr && room > 0) std::snprintf(message, room, "phantom cuDNN records no messages");
}
