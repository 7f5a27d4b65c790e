// The choices that the search makes, as a table. The search itself knows no field: each row names the job fields that
// it decides and lists their possible values. A new choice is one file and its line
// in list.def.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "estimator/least/open_choices.h"
#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/spec.h"

namespace vramfit {

/// What choices follow from besides the job.
struct SearchSpace {
  const ModelSpec& spec;
  const Cluster& cluster;
  const Efficiency& efficiency;
  bool clip = true;                                          // whether a step clips gradients
  bool is_sharding_set = false;                              // by a person, not by the search
  mutable std::map<std::int64_t, Loss> default_losses = {};  // by micro-batch: set_default_loss may take long
  mutable std::int64_t layer_elements = 0, parameters = 0;   // 0: not counted yet

  /// As set_default_loss.
  Loss default_loss(const Job& job) const;
  /// Whether the head has less than a twelfth of the parameters. A step is then at most a few thousandths longer with
  /// the default's chunks of the loss than with fewer (docs/planner.md).
  bool has_small_head() const;
  /// Of a layer's parameters when they are gathered, about.
  Bytes layer_bytes(const Job& job) const;
};

struct Dimension {
  std::string_view name;
  std::string_view cost;                 // what a smaller choice costs the user
  std::vector<std::string_view> fields;  // job fields it decides; skipped if the user set one of them
  /// What `job` may become, including `job` itself, fastest kind first. The training result is the same.
  std::vector<Job> (*choices)(const Job& job, const SearchSpace& space);
  /// As what the bounds know this choice while it is open. Without it, nothing is known of a group of jobs before the
  /// choice has been made.
  std::optional<OpenChoice> open = std::nullopt;
  /// Whether a choice may contradict others, so that resolve_job refuses the job.
  bool may_contradict = false;
  /// Whether `choices` looks at nothing of a job but kinds_of() it, and changes nothing that units_key() and ops_key()
  /// are made of.
  bool is_simple = false;
  /// Whether jobs that differ in this row alone, and of which the bound of memory says the same, have nearly as many
  /// fragments.
  bool is_fine = false;
  /// Whether its choices differ in the allocator's fragments, and hardly in anything else: the first requests least,
  /// and others are timed anew where their programs differ. Such rows are the last; the first choice is the job as it
  /// is, and others are tried where the fragments of those before it are too many. With PyTorch's runtimes, the last
  /// one leaves the fewest in most jobs: where the smallest need is looked for, it comes first.
  bool only_fragments = false;
};

/// What simple rows look at, packed: jobs with equal kinds have equally many choices.
std::uint32_t kinds_of(const Job& job);

/// All dimensions, in the order in which they are applied; ties between equally fast jobs go to the choice named first.
std::span<const Dimension> dimensions();

namespace dimension {
#define DIMENSION(name) Dimension name();
#include "planner/dimensions/list.def"
#undef DIMENSION
}  // namespace dimension

}  // namespace vramfit
