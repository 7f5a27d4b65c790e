#include "phantom/core/memory.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::Context;
using phantom::context_of;
using phantom::handle_of;
using phantom::result;
using phantom::Status;

namespace {

CUresult make(CUcontext* context, unsigned int flags, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* made = nullptr;
  const Status status = phantom::create_context(device, flags, &made);
  if (status == Status::success) *context = handle_of(made);
  return result(status);
}

}  // namespace

PHANTOM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* retained = nullptr;
  const Status status = phantom::retain_primary(device, &retained);
  if (status == Status::success) *context = handle_of(retained);
  return result(status);
}

PHANTOM_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return result(phantom::release_primary(device)); }

PHANTOM_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return result(phantom::reset_primary(device)); }

PHANTOM_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  Context* const context = phantom::primary_context(device);
  if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  const Context* const context = phantom::primary_context(device);
  if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = context->flags;
  if (active != nullptr) *active = context->active ? 1 : 0;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return make(context, flags, device);
}

PHANTOM_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* /*affinity*/, int /*count*/,
                                       unsigned int flags, CUdevice device) {
  return make(context, flags, device);
}

PHANTOM_EXPORT CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams* /*parameters*/, unsigned int flags,
                                    CUdevice device) {
  return make(context, flags, device);
}

PHANTOM_EXPORT CUresult cuCtxDestroy(CUcontext context) {
  return result(phantom::destroy_context(context_of(context)));
}

PHANTOM_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = handle_of(phantom::current_context());
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  return result(phantom::set_current_context(context_of(context)));
}

PHANTOM_EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  return result(phantom::push_context(context_of(context)));
}

PHANTOM_EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
  Context* popped = nullptr;
  const Status status = phantom::pop_context(&popped);
  if (status == Status::success && context != nullptr) *context = handle_of(popped);
  return result(status);
}

PHANTOM_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = phantom::current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->card;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  if (context == nullptr) return cuCtxGetDevice(device);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!phantom::is_context(context_of(context))) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context_of(context)->card;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxGetFlags(unsigned int* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = phantom::current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxSetFlags(unsigned int flags) {
  Context* const context = phantom::current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context->flags = flags;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const asked = context == nullptr ? phantom::current_context() : context_of(context);
  if (asked == nullptr || !phantom::is_context(asked)) return CUDA_ERROR_INVALID_CONTEXT;
  *id = asked->id;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxGetApiVersion(CUcontext /*context*/, unsigned int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;  // of the interface with 64-bit sizes; it has not changed since
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxSynchronize() {
  const Context* const context = phantom::current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return result(phantom::synchronize_card(context->card));
}

PHANTOM_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (context == nullptr) return cuCtxSynchronize();
  if (!phantom::is_context(context_of(context))) return CUDA_ERROR_INVALID_CONTEXT;
  return result(phantom::synchronize_card(context_of(context)->card));
}

PHANTOM_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

// Limits and preferences change how kernels run, which none does: defaults are answered, settings accepted.
PHANTOM_EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<int>(limit)) {
    case CU_LIMIT_STACK_SIZE:
      *value = 1 << 10;
      break;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      *value = 1 << 20;
      break;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      *value = 8 << 20;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuCtxSetLimit(CUlimit /*limit*/, size_t /*value*/) { return CUDA_SUCCESS; }

PHANTOM_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int /*flags*/) {
  return phantom::is_context(context_of(peer)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

PHANTOM_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return phantom::is_context(context_of(peer)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
