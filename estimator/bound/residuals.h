// Recorded cases of a prediction and of what was then observed: configs/residuals/, which gives the source of each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"
#include "job/job.h"

namespace vramfit {

struct Residual {
  Runtime runtime{};
  bool is_qlora = false;  // whose loading leaves other blocks behind than is counted (docs/pytorch-runtimes.md#qlora)
  std::string name;       // "titan_8b_pr822_reshard_never"
  Bytes predicted, observed;
};

/// What a file of configs/residuals/ is about. Each kind says nothing about the others.
enum class ResidualKind {
  reserved,   // estimated, and then published as the peak that a GPU's allocator had reserved
  rehearsed,  // estimated, and then reserved in a rehearsal, by the real libraries on simulated GPUs
  outside     // estimated, and then published as what a process held on a GPU outside the allocator
};
inline constexpr std::size_t kResidualKinds = 3;

/// The name of its file, without ".json".
std::string_view residual_kind_name(ResidualKind kind);

/// Reads the text of a file. Throws InputError naming the file and the key: for another kind, runtimes that aren't
/// known, sizes that aren't positive or that no card has, cases without a name or a source, and names that come twice.
std::vector<Residual> read_residuals(std::string_view text, ResidualKind kind, const std::string& file);

/// Those that are compiled in.
const std::vector<Residual>& recorded_residuals(ResidualKind kind);

}  // namespace vramfit
