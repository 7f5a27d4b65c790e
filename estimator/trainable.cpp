#include <algorithm>

#include "estimator/count.h"
#include "estimator/glob.h"
#include "model_specs/error.h"

namespace vramfit {

std::vector<bool> trainable_parameters(const Graph& graph, const Job& job) {
  std::vector<bool> trainable;
  for (const Parameter& parameter : graph.parameters) {
    trainable.push_back(std::ranges::none_of(
        job.freeze, [&](const std::string& pattern) { return matches_glob(pattern, parameter.name); }));
  }
  if (std::ranges::none_of(trainable, [](bool b) { return b; })) {
    throw InputError("--freeze leaves no parameter to train");
  }
  return trainable;
}

std::vector<bool> segments_with_backward(const Graph& graph, const Job& job) {
  const std::vector<bool> trainable = trainable_parameters(graph, job);
  std::vector<bool> has_backward;
  bool any = false;
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) any = any || trainable[static_cast<std::size_t>(use.parameter)];
    }
    has_backward.push_back(any);
  }
  return has_backward;
}

}  // namespace vramfit
