// Lowers a job to its program: unit layout, tapes and schedule composed into what one rank does, from load to the end
// of a step. The only place that does.
#pragma once

#include <optional>

#include "job/cluster/device.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/program.h"
#include "program/run_effects.h"
#include "program/stages/tape.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

struct LowerInputs {
  const Graph& graph;
  const Job& job;  // resolved, of runtime vramfit
  const Device& device;
  Coords coords;  // shards are padded to equal sizes: ranks differ in what rank 0 reads for the others, and in saving
  RunEffects run = {};
  // The job's unit layout and tapes, for a caller that has them from a job that shares them; null: they are made.
  const UnitLayout* layout = nullptr;
  const SharedTapes* tapes = nullptr;
  bool labels = true;  // false: buffers are not named, for readers of sizes and seconds alone
  // false: what is computed, sent and waited for may be left out, for readers of sizes alone. Where the run saves it
  // isn't, as what is saved is found by what loaded it.
  bool calls = true;
  /// A walk through PyTorch's code ends with ReservesTooMuch once its program reserves as much (least_reserved).
  std::optional<Bytes> reserves_below = {};
};

/// What is asked for reserves no less than the limit that it was given.
struct ReservesTooMuch {};

/// Every step is the same: load makes what lives longer. Throws NotModelled for features without rules.
Program lower(const LowerInputs& inputs);

}  // namespace vramfit::program
