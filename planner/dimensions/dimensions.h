// The choices that the search makes, as a table. The search itself knows no field: each row names the job fields that
// it decides and lists their possible values. A new choice is one file and one row.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "job/cluster.h"
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

std::vector<Job> sharding_choices(const Job& job, const SearchSpace& space);
std::vector<Job> mesh_choices(const Job& job, const SearchSpace& space);
std::vector<Job> reshard_choices(const Job& job, const SearchSpace& space);
std::vector<Job> wrap_choices(const Job& job, const SearchSpace& space);
std::vector<Job> batch_choices(const Job& job, const SearchSpace& space);
std::vector<Job> accumulate_choices(const Job& job, const SearchSpace& space);
std::vector<Job> checkpointing_choices(const Job& job, const SearchSpace& space);
std::vector<Job> loss_choices(const Job& job, const SearchSpace& space);
std::vector<Job> head_choices(const Job& job, const SearchSpace& space);
std::vector<Job> prefetch_choices(const Job& job, const SearchSpace& space);

}  // namespace vramfit
