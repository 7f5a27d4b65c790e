// Wrapping policies: which FSDP unit each parameter belongs to (docs/wrapping.md).
#pragma once

#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Parameters that no policy selects belong to the root unit, as in FSDP.
inline constexpr const char* kRootUnit = "root";

/// The name of each parameter's unit, by parameter; names follow from the model alone, not from the mesh or the order
/// of anything else. A tied weight has the unit of its one name in the checkpoint. Throws InputError for a pattern that
/// matches no module.
std::vector<std::string> unit_names(const Graph& graph, const Job& job);

}  // namespace vramfit
