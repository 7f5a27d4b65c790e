#include "phantom/core/streams.h"
#include "phantom/core/pending.h"

#include "phantom/core/graph.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
using phantom::result;
using phantom::Status;

namespace vramfit::phantom {

Stream* stream_behind(cudaStream_t handle) {
  if (ensure_context() != Status::success) return nullptr;
  return stream_of(handle, current_card());
}

}  // namespace vramfit::phantom

namespace {

phantom::Event* event_behind(cudaEvent_t handle) { return reinterpret_cast<phantom::Event*>(handle); }

constexpr int kLowestPriority = 0,
              kHighestPriority = -5;  // cudaDeviceGetStreamPriorityRange of compute capability >= 7.0

}  // namespace

PHANTOM_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  if (lowest != nullptr) *lowest = kLowestPriority;
  if (highest != nullptr) *highest = kHighestPriority;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  if (stream == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  *stream = reinterpret_cast<cudaStream_t>(phantom::create_stream(phantom::current_card(), flags, priority));
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

PHANTOM_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

PHANTOM_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return result(phantom::destroy_stream(reinterpret_cast<phantom::Stream*>(stream)));
}

PHANTOM_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  const phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr || flags == nullptr) return result(Status::invalid_handle);
  *flags = behind->flags;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr || priority == nullptr) return result(Status::invalid_handle);
  *priority = behind->priority;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  const phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr || id == nullptr) return result(Status::invalid_handle);
  *id = behind->id;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr) return result(Status::invalid_handle);
  if (phantom::spoil_capture(behind)) return result(Status::capture_unsupported);
  return result(phantom::query_stream(behind));
}

PHANTOM_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr) return result(Status::invalid_handle);
  if (phantom::spoil_capture(behind)) return result(Status::capture_unsupported);
  return result(phantom::synchronize_stream(behind));
}

PHANTOM_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind == nullptr || event == nullptr) return result(Status::invalid_handle);
  if (!phantom::capture_wait(behind, event_behind(event))) phantom::wait_for_event(behind, event_behind(event));
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (function == nullptr) return result(Status::invalid_value);
  return result(phantom::submit(phantom::stream_behind(stream), phantom::NodeKind::host, [=] {
    function(data);
    return Status::success;
  }));
}

PHANTOM_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                                 unsigned int /*flags*/) {
  if (callback == nullptr) return result(Status::invalid_value);
  return result(phantom::submit(phantom::stream_behind(stream), phantom::NodeKind::host, [=] {
    callback(stream, cudaSuccess, data);
    return Status::success;
  }));
}

PHANTOM_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (event == nullptr) return result(Status::invalid_value);
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  *event = reinterpret_cast<cudaEvent_t>(phantom::create_event(phantom::current_card(), flags));
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

PHANTOM_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return result(phantom::destroy_event(event_behind(event)));
}

PHANTOM_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int /*flags*/) {
  phantom::Stream* behind = phantom::stream_behind(stream);
  if (behind != nullptr && phantom::capture_record(behind, event_behind(event))) return cudaSuccess;
  return result(phantom::record_event(event_behind(event), behind));
}

PHANTOM_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

PHANTOM_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  return result(phantom::query_event(event_behind(event)));
}

PHANTOM_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return result(phantom::synchronize_event(event_behind(event)));
}

// No time passes; a hundredth of a millisecond keeps programs from dividing by zero.
PHANTOM_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (milliseconds == nullptr || start == nullptr || end == nullptr) return result(Status::invalid_handle);
  *milliseconds = 0.01F;
  return cudaSuccess;
}
