// Walks a graph and checks what every reader of graphs relies on.
#pragma once

#include <string>
#include <vector>

#include "model_specs/graph.h"

namespace vramfit::testing {

/// Fails the running test where a value has no maker before its readers, is overwritten while still needed, or has
/// another shape than its op and parameters give it; or where segments don't join.
void check_graph(const Graph& graph);

/// Names of parameters with output features that no op uses.
std::vector<std::string> unused_parameters(const Graph& graph);

}  // namespace vramfit::testing
