// Wrapping policies: which FSDP unit each parameter belongs to (docs/wrapping.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Parameters that no policy selects belong to the root unit, as in FSDP.
inline constexpr const char* kRootUnit = "root";

/// Of a wrapping by layers: how many a unit has at most.
std::int64_t layers_of_unit(const Wrap& wrap);

/// "layers.0-3" for "layers.0" and "layers.3".
std::string group_name(const std::string& first, const std::string& last);

/// The name of each parameter's unit, by parameter; names follow from the model alone, not from the mesh or the order
/// of anything else. A tied weight has the unit of its one name in the checkpoint. Throws InputError for a pattern that
/// matches no module.
std::vector<std::string> unit_names(const Graph& graph, const Job& job);

}  // namespace vramfit
