// Streams and events: the same objects as the runtime's.
#include "phantom/core/graph.h"
#include "phantom/core/pending.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::Event;
using phantom::event_of;
using phantom::result;
using phantom::Status;
using phantom::Stream;

namespace {

bool has_context() { return phantom::current_context() != nullptr; }

CUresult record(CUevent handle, CUstream stream, bool external) {
  Stream* const on = phantom::stream_behind(stream);
  Event* const event = event_of(handle);
  if (on == nullptr || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!external && phantom::capture_record(on, event)) return CUDA_SUCCESS;
  return result(phantom::submit(on, phantom::NodeKind::record_event, [=] { return phantom::record_event(event, on); }));
}

}  // namespace

PHANTOM_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  if (stream == nullptr || (flags & ~1U) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *stream = reinterpret_cast<CUstream>(phantom::create_stream(phantom::current_card(), flags, priority));
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

PHANTOM_EXPORT CUresult cuStreamDestroy(CUstream stream) {
  return result(phantom::destroy_stream(reinterpret_cast<Stream*>(stream)));
}

PHANTOM_EXPORT CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || priority == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *priority = on->priority;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *flags = on->flags;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || id == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *id = on->id;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || device == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *device = on->card;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || context == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = phantom::handle_of(phantom::primary_context(on->card));
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuStreamQuery(CUstream stream) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (phantom::spoil_capture(on)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return result(phantom::query_stream(on));
}

PHANTOM_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (phantom::spoil_capture(on)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return result(phantom::synchronize_stream(on));
}

// Work is done in the order in which the host submits it, so only a capture has to know who waits for whom.
PHANTOM_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int /*flags*/) {
  Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!phantom::capture_wait(on, event_of(event))) phantom::wait_for_event(on, event_of(event));
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(phantom::submit(on, phantom::NodeKind::host, [=] {
    function(data);
    return Status::success;
  }));
}

PHANTOM_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                                            unsigned int /*flags*/) {
  const Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr || callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (phantom::spoil_capture(on)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  callback(stream, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *event = reinterpret_cast<CUevent>(phantom::create_event(phantom::current_card(), flags));
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuEventDestroy(CUevent event) { return result(phantom::destroy_event(event_of(event))); }

PHANTOM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, false); }

PHANTOM_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, stream, (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
}

PHANTOM_EXPORT CUresult cuEventQuery(CUevent event) { return result(phantom::query_event(event_of(event))); }

PHANTOM_EXPORT CUresult cuEventSynchronize(CUevent event) {
  return result(phantom::synchronize_event(event_of(event)));
}

// There is no time: nothing takes any.
PHANTOM_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (milliseconds == nullptr || start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!event_of(start)->recorded || !event_of(end)->recorded) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = 0;
  return CUDA_SUCCESS;
}
