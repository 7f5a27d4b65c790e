// A lower bound of what a job under one of PyTorch's runtimes requests at once, from walks of the same model with few
// blocks.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "job/job.h"
#include "job/loss_options.h"
#include "model_specs/graph.h"
#include "program/lowering/lower.h"

namespace vramfit {

/// For jobs of one model on one kind of card. Not for several threads at once.
class LeastWalked {
 public:
  LeastWalked(const ModelSpec& spec, const Device& device, RunEffects run) : spec_(spec), device_(device), run_(run) {}

  /// At most what the resolved job's program requests at once; none where nothing is known: blocks that differ, choices
  /// of blocks one by one, and models so shallow that to walk through all blocks takes no longer. `graph`: the job's.
  std::optional<Bytes> requested(const Graph& graph, const Job& job);

 private:
  /// The job's model with another number of blocks; none unless it is `graph` but for that.
  const std::optional<Graph>& short_graph(const Graph& graph, const Job& job, std::size_t blocks);
  /// With whole periods of blocks left out, and added again as the last one walked through.
  std::optional<Bytes> extended(const Graph& graph, const Job& job, std::size_t period, std::size_t blocks);
  /// None if `blocks` of it aren't known to be the same model.
  std::optional<Bytes> walked(const Graph& graph, const Job& job, std::size_t blocks);

  const ModelSpec& spec_;
  const Device& device_;
  RunEffects run_;
  /// By loss, whether there are adapters, and blocks.
  std::map<std::tuple<LossOptions, bool, std::size_t>, std::optional<Graph>> graphs_;
  std::map<std::pair<std::string, std::size_t>, Bytes> walked_;  // by the job's flags and blocks
};

}  // namespace vramfit
