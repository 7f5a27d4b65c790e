// Finds the newest valid checkpoint; all ranks work together.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/checkpoint/manifest.h"
#include "executor/checkpoint/saved_states.h"
#include "executor/sharding/process_groups.h"
#include "model_specs/graph.h"

namespace vramfit {

struct ResumeRequest {
  std::string directory;
  std::vector<std::pair<std::string, std::string>> facts;  // of this run
  int rank = 0, world = 1;
  std::vector<bool> is_scaled = {};  // parameters that have scales, by number; empty: none
};

struct Resumed {
  Manifest manifest;
  std::unique_ptr<SavedStates> states;
};

/// The newest committed checkpoint all of whose files are what the manifest says; each rank reads its share of them.
/// Rank 0 warns of each that is not. Throws InputError when the run differs from the checkpoint's (check_facts),
/// ModelError if there is no valid checkpoint.
Resumed resume(const ResumeRequest& request, const Graph& graph, ProcessGroups& groups);

}  // namespace vramfit
