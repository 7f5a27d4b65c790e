// What searches of one model share, whatever the cluster of a GPU: graphs, and the stages that are made of them.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "estimator/least/shared_stages.h"
#include "job/cluster/device.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "model_specs/spec.h"

namespace vramfit {

/// Not for several threads at once; references stay valid as long as it is there.
class ModelStages {
 public:
  ModelStages(ModelSpec spec, const Device& device)
      : spec_(std::move(spec)), stages_(std::make_shared<SharedStages>(device)) {}

  /// By loss, and whether there are adapters: all adapters are those of the first job that has any.
  const Graph& graph_of(const Job& job);
  const std::shared_ptr<SharedStages>& stages() const { return stages_; }

 private:
  ModelSpec spec_;
  std::map<std::pair<bool, LossOptions>, Graph> graphs_;  // those without adapters first
  std::shared_ptr<SharedStages> stages_;
};

}  // namespace vramfit
