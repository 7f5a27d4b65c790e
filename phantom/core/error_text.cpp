#include "phantom/core/error_text.h"

#include <array>

namespace vramfit::phantom {

namespace {

struct Row {
  int error;
  const char* text;
};

// As PyTorch's and other programs' messages show them.
constexpr std::array kTexts{
    Row{0, "no error"},
    Row{1, "invalid argument"},
    Row{2, "out of memory"},
    Row{3, "initialization error"},
    Row{4, "driver shutting down"},
    Row{9, "invalid configuration argument"},
    Row{12, "invalid pitch argument"},
    Row{13, "invalid device symbol"},
    Row{34, "CUDA driver is a stub library"},
    Row{35, "CUDA driver version is insufficient for CUDA runtime version"},
    Row{46, "CUDA-capable device(s) is/are busy or unavailable"},
    Row{52, "__global__ function call is not configured"},
    Row{98, "invalid device function"},
    Row{100, "no CUDA-capable device is detected"},
    Row{101, "invalid device ordinal"},
    Row{200, "device kernel image is invalid"},
    Row{201, "invalid device context"},
    Row{205, "mapping of buffer object failed"},
    Row{206, "unmapping of buffer object failed"},
    Row{209, "no kernel image is available for execution on the device"},
    Row{211, "resource not mapped"},
    Row{215, "limit is not supported on this architecture"},
    Row{217, "peer access is not supported between these two devices"},
    Row{218, "a PTX JIT compilation failed"},
    Row{221, "PTX JIT compiler library not found"},
    Row{222, "the provided PTX was compiled with an unsupported toolchain."},
    Row{300, "device kernel image is invalid"},
    Row{301, "file not found"},
    Row{302, "shared object symbol not found"},
    Row{304, "OS call failed or operation not supported on this OS"},
    Row{400, "invalid resource handle"},
    Row{401, "the operation cannot be performed in the present state"},
    Row{500, "named symbol not found"},
    Row{600, "device not ready"},
    Row{700, "an illegal memory access was encountered"},
    Row{701, "too many resources requested for launch"},
    Row{704, "peer access is already enabled"},
    Row{705, "peer access has not been enabled"},
    Row{708, "cannot set while device is active in this process"},
    Row{709, "context is destroyed"},
    Row{712, "part or all of the requested memory range is already mapped"},
    Row{713, "pointer does not correspond to a registered memory region"},
    Row{719, "unspecified launch failure"},
    Row{720, "too many blocks in cooperative launch"},
    Row{800, "operation not permitted"},
    Row{801, "operation not supported"},
    Row{802, "system not yet initialized"},
    Row{803, "system has unsupported display driver / cuda driver combination"},
    Row{900, "operation not permitted when stream is capturing"},
    Row{901, "operation failed due to a previous error during capture"},
    Row{902, "operation would result in a merge of separate capture sequences"},
    Row{903, "capture was not ended in the same stream as it began"},
    Row{904, "capturing stream has unjoined work"},
    Row{905, "dependency created on uncaptured work in another stream"},
    Row{906, "operation would make the legacy stream depend on a capturing blocking stream"},
    Row{907, "operation not permitted on an event last recorded in a capturing stream"},
    Row{908, "attempt to terminate a thread-local capture sequence from another thread"},
    Row{909, "wait operation timed out"},
    Row{910,
        "the graph update was not performed because it included changes which violated constraints specific to "
        "instantiated graph update"},
    Row{999, "unknown error"},
};

}  // namespace

const char* error_text(int error) {
  for (const Row& row : kTexts) {
    if (row.error == error) return row.text;
  }
  return nullptr;
}

}  // namespace vramfit::phantom
