#include "planner/search/model_stages.h"

#include "job/loss/loss_options.h"
#include "model_specs/loss_layout.h"
#include "program/stages/adapters.h"

namespace vramfit {

const Graph& ModelStages::graph_of(const Job& job) {
  const std::pair key{has_adapters(job), loss_options(job)};
  const auto found = graphs_.find(key);
  if (found != graphs_.end()) return found->second;
  const bool is_known_but_for_loss = !graphs_.empty() && !key.first && !graphs_.begin()->first.first;
  Graph graph = is_known_but_for_loss ? with_loss(graphs_.begin()->second, key.second) : training_graph(spec_, job);
  return graphs_.emplace(key, std::move(graph)).first->second;
}

}  // namespace vramfit
