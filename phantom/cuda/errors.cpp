#include "phantom/core/error_text.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;

namespace {

struct Name {
  int error;
  const char* name;
};

constexpr Name kNames[] = {
#include "driver_errors.inc"
};

const char* name_of(CUresult error) {
  for (const Name& row : kNames) {
    if (row.error == static_cast<int>(error)) return row.name;
  }
  return nullptr;
}

}  // namespace

PHANTOM_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = name_of(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Errors whose text is not listed are those that no function here returns; their name says as much.
PHANTOM_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = phantom::error_text(static_cast<int>(error));
  if (*text == nullptr) *text = name_of(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
