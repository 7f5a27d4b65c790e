// Unit layouts, tapes and what segments hold, of many jobs of one model: those with equal keys
// (estimator/least/job_keys.h) share them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "estimator/least/saved_activations.h"
#include "job/cluster/device.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/stages/tape.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// Not for several threads at once. The graphs outlive it; references stay valid as long as it is there.
class SharedStages {
 public:
  explicit SharedStages(const Device& device) : device_(device) {}

  const UnitLayout& layout_of(const Graph& graph, const Job& job);
  /// Throws what make_shared_tapes throws.
  const SharedTapes& tapes_of(const Graph& graph, const Job& job);
  const std::vector<SavedActivations>& saved_of(const Graph& graph, const Job& job);

 private:
  Device device_;
  std::map<std::string, UnitLayout> layouts_;      // by layout_key
  std::map<std::string, KnownTapes> known_tapes_;  // by blocks_key
  // By ops_key:
  std::map<std::string, SharedTapes> tapes_;
  std::map<std::string, std::vector<SavedActivations>> saved_;
};

}  // namespace vramfit
