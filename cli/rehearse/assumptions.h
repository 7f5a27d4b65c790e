// Assumptions that a rehearsal's values rest on, where kernels would have computed them (docs/values.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/rehearse/records.h"

namespace vramfit {

/// By how they are read: reads at the same place, over all processes, are one.
std::vector<AssumedRead> merged_reads(const std::vector<ProcessRecord>& processes);

/// The names of the bits, such as "routing"; "unknown" for -1.
std::vector<std::string> assumption_names(std::int64_t assumptions);

/// Whether a size or a branch follows from a value that another run may give differently. That losses and gradients are
/// finite is not such a value: where they are not, training has failed. What ghosts sent is reported as invented.
bool is_risky(const AssumedRead& read);

/// Lines of the report, each ending in a newline; "" without reads.
std::string assumed_lines(const std::vector<AssumedRead>& reads);

}  // namespace vramfit
