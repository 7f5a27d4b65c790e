// Reads plan.json (vramfit/plan@1), which is all that a run needs: no hub, catalog or planner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/spec.h"
#include "program/files/rank_memory.h"

namespace vramfit {

struct PlanFile {
  ModelSpec spec;  // read from the config.json that the plan carries
  Job job;         // complete: nothing is left to resolve
  Cluster cluster;
  std::vector<std::string> fixed;  // names of job fields that the planner was not free to choose
  bool clip = true;                // whether the prediction counts gradient clipping
  Bytes capacity;
  std::string
      fingerprint;  // of the predicted program (program/readers/fingerprint.h); "" in plans written before it existed
  std::vector<RankEstimate> predicted_ranks;
  int predicted_worst = 0;
};

/// Throws InputError naming `file` and the key for what is unknown, missing, contradictory or out of range, ModelError
/// for a config.json that can't be read.
PlanFile plan_from_json(std::string_view text, const std::string& file);

}  // namespace vramfit
