// Segments whose units do the same, as the layers of most models: what units do by themselves needs to be found out for
// one of them.
#pragma once

#include <cstddef>
#include <vector>

#include "model_specs/graph.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// By segment: the first one that is like it, or itself. Two are alike if each has one unit, which no other segment
/// uses, if these are laid out alike, and if the ops use their parameters in the same way: then gathers, reductions and
/// updates move and compute equally much.
std::vector<std::size_t> first_alike(const Graph& graph, const UnitLayout& layout);

}  // namespace vramfit
