// Memory, registration, version and texts.
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "phantom/core/context.h"
#include "phantom/core/memory.h"
#include "phantom/nccl/api.h"

namespace vramfit::phantom {

namespace {

std::int64_t rounded_up(std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(bytes);
  return (wanted + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Handles that the library only hands back: each its own, never an address that can be read.
std::uintptr_t next_handle() {
  static std::atomic<std::uintptr_t> next{1};
  return next++;
}

template <typename Handle>
ncclResult_t registered(const ncclComm_t comm, Handle* handle, const char* function) {
  if (communicator_of(comm) == nullptr) return no_communicator(function);
  if (handle == nullptr) return refuse(ncclInvalidArgument, fmt::format("{}: null pointer", function));
  *handle = reinterpret_cast<Handle>(next_handle());  // NOLINT(performance-no-int-to-ptr)
  return ncclSuccess;
}

}  // namespace

}  // namespace vramfit::phantom

using vramfit::phantom::communicator_of;
using vramfit::phantom::no_communicator;
using vramfit::phantom::refuse;
using vramfit::phantom::Status;

// As the library: whole pages of the card, since it takes them from cuMemCreate.
PHANTOM_EXPORT ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  using namespace vramfit::phantom;  // NOLINT(google-build-using-namespace): within one function
  if (ptr == nullptr || size == 0 || size > (std::size_t{1} << 62)) {
    return refuse(ncclInvalidArgument, "ncclMemAlloc: null pointer or invalid size");
  }
  if (ensure_context() != Status::success) return refuse(ncclUnhandledCudaError, "ncclMemAlloc: no card");
  if (allocate_device(current_card(), rounded_up(size), ptr) == Status::success) return ncclSuccess;
  return refuse(ncclUnhandledCudaError, fmt::format("ncclMemAlloc: out of memory for {} bytes", size));
}

PHANTOM_EXPORT ncclResult_t ncclMemFree(void* ptr) {
  if (vramfit::phantom::free_device(ptr) == Status::success) return ncclSuccess;
  return refuse(ncclInvalidArgument, "ncclMemFree: not a block of ncclMemAlloc");
}

PHANTOM_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void*, size_t, void** handle) {
  return vramfit::phantom::registered(comm, handle, "ncclCommRegister");
}

PHANTOM_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  return communicator_of(comm) == nullptr ? no_communicator("ncclCommDeregister") : ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void*, size_t, ncclWindow_t* win, int) {
  return vramfit::phantom::registered(comm, win, "ncclCommWindowRegister");
}

PHANTOM_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return communicator_of(comm) == nullptr ? no_communicator("ncclCommWindowDeregister") : ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return refuse(ncclInvalidArgument, "ncclGetVersion: null pointer");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

PHANTOM_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclNumResults:
      break;
  }
  return "unknown result code";
}

PHANTOM_EXPORT const char* ncclGetLastError(ncclComm_t) { return vramfit::phantom::last_error(); }
