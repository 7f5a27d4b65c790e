// What parts of an answer depend on, as text: jobs of one model with equal keys share them.
#pragma once

#include <string>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// What lay_out_units depends on. Graphs of one model differ in their loss alone: in one segment less where it is
/// chunked.
std::string layout_key(const Graph& graph, const Job& job);

/// What lay_out_units, the trained parameters and the optimizer's states depend on. Graphs of one model
/// differ in their loss alone: in one segment less where it is chunked, and in the number of chunks.
std::string units_key(const Graph& graph, const Job& job);

/// What tapes and the times of ops depend on: shapes, dtypes, kernels, and the trained parameters. The graph goes in by
/// its address.
std::string ops_key(const Graph& graph, const Job& job);

/// Likewise of the blocks alone, which graphs of one model share.
std::string blocks_key(const Job& job);

/// What the schedule of a step, and the main list of its program, depend on besides units_key(); of more than three
/// micro-batches only that there are more than two.
std::string schedule_key(const Job& job);

/// What a program depends on, but for the work of its ops: the rows of a micro-batch and the number of loss chunks
/// change nothing else that takes time.
std::string program_key(const Graph& graph, const Job& job);

}  // namespace vramfit
