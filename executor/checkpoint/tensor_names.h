// The names under which a checkpoint may hold a parameter.
#pragma once

#include <string>
#include <vector>

#include "model_specs/graph.h"

namespace vramfit {

/// Candidates for one parameter of the graph, most likely first: its own name, with or without the prefix of the
/// class or a wrapper, older spellings, and for a tied embedding the head's name.
std::vector<std::string> checkpoint_names(const std::string& name, const Graph& graph);

}  // namespace vramfit
