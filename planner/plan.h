// The plan: the fastest job that fits, why, and the alternatives. Written to plan.json (vramfit/plan@1).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/time/step_time.h"

namespace vramfit {

/// `--allow KIND[:VALUE],...`: changes to the training result that the search may use.
struct Allowed {
  bool any = false;
  std::map<std::string, std::vector<std::string>> kinds;  // "precision" -> {"bf16-pure"}; empty list: every value
};
Allowed parse_allowed(const std::string& text);

struct Candidate {
  Job job;
  Estimate estimate;
  StepTime time;
  double tokens_per_second = 0;    // of the whole job
  std::vector<std::string> needs;  // kinds it would have to be allowed: {"precision:bf16-pure"}
  std::string why;                 // "slower by 12 %: full recomputation", "+3.1 GiB in activations"
};

inline constexpr std::size_t kMostConfigurations = 20000;

struct PlanRequest {
  ModelSpec spec;
  Job job;                         // what the user set
  std::vector<std::string> fixed;  // names of the fields the user set: never changed
  Cluster cluster;
  Allowed allowed;
  bool clip = true;
  std::size_t most_configurations = kMostConfigurations;  // for each change; the search is cut there
};

struct SearchCounts {
  std::int64_t configurations = 0;  // covered: ruled out by the lower bound, or ranked by time
  std::int64_t ruled_out = 0;       // of them, by the bound
  std::int64_t estimates = 0;       // made, those for alternatives included
  bool cut = false;                 // the space holds more than the search looks at
  double seconds = 0;
};

struct Plan {
  std::optional<Candidate> chosen;  // none: exit 4
  std::vector<Candidate> alternatives;
  std::string why;  // one sentence, also when there is no plan ("fits with --allow precision:bf16-pure: ...")
  SearchCounts search;
};

Plan make_plan(const PlanRequest& request);

}  // namespace vramfit
