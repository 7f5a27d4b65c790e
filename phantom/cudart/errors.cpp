#include <array>
#include <utility>

#include "phantom/cudart/runtime.h"

namespace vramfit::phantom {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define ERROR(NAME, TEXT) \
  ErrorText { NAME, #NAME, TEXT }
// The ones that the stand-ins return; texts as the runtime's documentation and PyTorch's messages show them.
constexpr std::array kErrors{
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    ERROR(cudaErrorInvalidPtx, "a PTX JIT compilation failed"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    ERROR(cudaErrorInvalidSource, "device kernel image is invalid"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorUnknown, "unknown error"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
};
#undef ERROR

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& row : kErrors) {
    if (row.error == error) return &row;
  }
  return nullptr;
}

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t result(Status status) { return result(static_cast<cudaError_t>(status)); }

}  // namespace vramfit::phantom

namespace phantom = vramfit::phantom;

PHANTOM_EXPORT cudaError_t cudaGetLastError() { return std::exchange(phantom::last_error, cudaSuccess); }
PHANTOM_EXPORT cudaError_t cudaPeekAtLastError() { return phantom::last_error; }

PHANTOM_EXPORT const char* cudaGetErrorName(cudaError_t error) {
  const phantom::ErrorText* row = phantom::find(error);
  return row == nullptr ? "unrecognized error code" : row->name;
}

PHANTOM_EXPORT const char* cudaGetErrorString(cudaError_t error) {
  const phantom::ErrorText* row = phantom::find(error);
  return row == nullptr ? "unrecognized error code" : row->text;
}
