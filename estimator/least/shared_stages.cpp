#include "estimator/least/shared_stages.h"

#include <utility>

#include "estimator/least/job_keys.h"
#include "job/fields/trained_dtype.h"

namespace vramfit {

const UnitLayout& SharedStages::layout_of(const Graph& graph, const Job& job) {
  std::string key = layout_key(graph, job);
  const auto known = layouts_.find(key);
  return known != layouts_.end() ? known->second
                                 : layouts_.emplace(std::move(key), lay_out_units(graph, job)).first->second;
}

const SharedTapes& SharedStages::tapes_of(const Graph& graph, const Job& job) {
  std::string key = ops_key(graph, job);
  const auto known = tapes_.find(key);
  if (known != tapes_.end()) return known->second;
  KnownTapes& of_blocks = known_tapes_[blocks_key(job)];
  return tapes_.emplace(std::move(key), make_shared_tapes(tape_inputs(graph, job, device_), of_blocks)).first->second;
}

const std::vector<SavedActivations>& SharedStages::saved_of(const Graph& graph, const Job& job) {
  std::string key = ops_key(graph, job);
  const auto known = saved_.find(key);
  if (known != saved_.end()) return known->second;
  const TapeInputs inputs = tape_inputs(graph, job, device_);
  std::vector<SavedActivations> saved = saved_activations(inputs, tapes_of(graph, job), kept_gradient_dtype(job));
  return saved_.emplace(std::move(key), std::move(saved)).first->second;
}

}  // namespace vramfit
