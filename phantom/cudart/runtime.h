// What the files of this stand-in share: the error that cudaGetLastError gives.
#pragma once

#include <cuda_runtime_api.h>

#include "phantom/core/context.h"
#include "phantom/core/status.h"
#include "phantom/core/streams.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// Keeps a failure for cudaGetLastError and returns it. "Not ready" is no failure.
cudaError_t result(Status status);
cudaError_t result(cudaError_t error);

/// The stream behind a handle, of the current card; makes a context if the thread has none.
Stream* stream_behind(cudaStream_t handle);

}  // namespace vramfit::phantom
