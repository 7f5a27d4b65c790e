// What the files of this stand-in share.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "phantom/core/context.h"
#include "phantom/core/status.h"
#include "phantom/core/streams.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

inline CUresult result(Status status) { return static_cast<CUresult>(status); }

// NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's device pointers are numbers
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
inline CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

inline Context* context_of(CUcontext handle) { return reinterpret_cast<Context*>(handle); }
inline CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }
inline Event* event_of(CUevent handle) { return reinterpret_cast<Event*>(handle); }

inline std::int64_t bytes_of(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

/// Null for a handle that is no stream.
inline Stream* stream_behind(CUstream handle) { return stream_of(handle, current_card()); }

/// What the newest driver of the headers' CUDA version reports.
inline constexpr int kDriverVersion = CUDA_VERSION;

}  // namespace vramfit::phantom
