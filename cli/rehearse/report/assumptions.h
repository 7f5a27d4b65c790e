// Assumptions that a rehearsal's values rest on, where kernels would have computed them (docs/values.md).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/rehearse/report/records.h"

namespace vramfit {

/// An assumption with two ends, and the setting that says which of them holds. Memory in between lies between theirs
/// only if it grows from one to the other.
struct AssumptionEnds {
  std::int64_t assumption;  // bit
  std::string_view setting, usual, other;
};
inline constexpr std::array<AssumptionEnds, 2> kAssumptionEnds{
    {{2, "routing", "balanced", "worst"}, {4, "selected", "1", "0"}}};

/// By how they are read: reads at the same place, over all processes, are one.
std::vector<AssumedRead> merged_reads(const std::vector<ProcessRecord>& processes);

/// The names of the bits, such as "routing"; "unknown" for -1.
std::vector<std::string> assumption_names(std::int64_t assumptions);

/// Whether a size or a branch follows from a value that another run may give differently. That losses and gradients are
/// finite is not such a value: where they are not, training has failed. What ghosts sent is reported as invented.
bool is_risky(const AssumedRead& read);

/// The bits of all that is risky. What is not even assumed has none.
std::int64_t risky_assumptions(const std::vector<ProcessRecord>& processes);

/// Lines of the report, each ending in a newline; "" without reads.
std::string assumed_lines(const std::vector<AssumedRead>& reads);

}  // namespace vramfit
