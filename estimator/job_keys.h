// What parts of an answer depend on, as text: jobs of one model with equal keys share them.
#pragma once

#include <string>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// What lay_out_units, the trained parameters and the optimizer's states depend on. The graph goes in by its address.
std::string units_key(const Graph& graph, const Job& job);

/// What tapes and the times of ops depend on: shapes, dtypes, kernels, and the trained parameters.
std::string ops_key(const Graph& graph, const Job& job);

/// What the schedule of a step, and the main list of its program, depend on besides units_key(); of more than three
/// micro-batches only that there are more than two.
std::string schedule_key(const Job& job);

}  // namespace vramfit
