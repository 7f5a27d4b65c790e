// The first form of the question who uses a card, with a smaller struct: PyTorch asks by it for the text of an
// out-of-memory, and takes anything but success for a fault. NVML_NO_UNVERSIONED_FUNC_DEFS is defined for it.
#include <nvml.h>

#include <vector>

#include "phantom/core/visibility.h"

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                                 nvmlProcessInfo_v1_t* processes) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::vector<nvmlProcessInfo_t> wide(processes == nullptr ? 0 : *count);
  const nvmlReturn_t error = nvmlDeviceGetComputeRunningProcesses_v3(device, count, wide.data());
  if (error != NVML_SUCCESS) return error;
  for (unsigned int i = 0; i < *count; ++i) processes[i] = {wide[i].pid, wide[i].usedGpuMemory};
  return NVML_SUCCESS;
}
