// Trained matrices of layers that are kept as numbers with a scale for each (--master-dtype fp16): what an update of
// them costs beside that of plain numbers, and what they don't go with.
#pragma once

#include <cstdint>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "program/stages/units_layout.h"
#include "program/work.h"

namespace vramfit {

/// fp32 numbers that LibTorch's calls work in while they find scales and round. Own kernels need none.
std::int64_t scaled_scratch(const Unit& unit);
/// Of making numbers of all that is trained.
Work work_of_scaled_reading(const Unit& unit, DeviceKind device, KernelSource kernels);
/// Of finding new scales for them, and rounding.
Work work_of_scaled_rounding(const Unit& unit, DeviceKind device, KernelSource kernels);

/// Throws Excluded for what needs parameters in another form.
void require_scaled_masters(const Job& job);

}  // namespace vramfit
