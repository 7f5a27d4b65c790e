// The choices that the search makes, as a table. The search itself knows no field: each row names the job fields that
// it decides and lists their possible values. A new choice is one file and its line
// in list.def.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/spec.h"

namespace vramfit {

struct SearchSpace {
  const ModelSpec& spec;
  const Cluster& cluster;
};

struct Dimension {
  std::string_view name;
  std::string_view cost;                 // what a smaller choice costs the user
  std::vector<std::string_view> fields;  // job fields it decides; skipped if the user set one of them
  /// What `job` may become, including `job` itself, fastest kind first. The training result is the same.
  std::vector<Job> (*choices)(const Job& job, const SearchSpace& space);
};

/// All dimensions, in the order in which they are applied; ties between equally fast jobs go to the choice named first.
std::span<const Dimension> dimensions();

namespace dimension {
#define DIMENSION(name) Dimension name();
#include "planner/dimensions/list.def"
#undef DIMENSION
}  // namespace dimension

}  // namespace vramfit
