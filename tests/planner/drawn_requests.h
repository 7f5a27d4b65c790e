// Requests drawn at random: a small model, a cluster, what is set, and a card that holds a part of the configurations.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "tests/planner/requests.h"

namespace vramfit::testing {

using Setting = std::pair<std::string, std::string>;

/// What a search may find set, and the space that is left open. Kept as a list, so that it can be shrunk.
struct Drawn {
  std::string model;
  int cluster = 0;
  std::int64_t rows = 8;       // of the global batch
  std::int64_t capacity = 50;  // percent of the space that fits, about; below 15 nearly nothing does
  bool clip = true;            // whether gradients are clipped
  std::int64_t sequence = 64;  // tokens
  std::vector<Setting> set;
};

inline const std::vector<std::pair<std::string, std::vector<std::string>>>& settings() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> kSettings{
      {"sharding", {"no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"}},
      {"reshard", {"default", "last-kept", "always", "2"}},
      {"wrap", {"layer", "layers:2", "none", "size:4000"}},
      {"micro_batch", {"1", "2"}},
      {"accumulate", {"sharded", "unsharded"}},
      {"checkpointing", {"none", "full", "every:2"}},
      {"loss", {"full", "chunked:5"}},
      {"reshard_head", {"on", "off"}},
      {"prefetch", {"backward=pre,forward=1,limit=0", "backward=none,forward=0,limit=0"}},
      {"reduce_finish", {"early", "end"}},
      {"precision", {"fp32", "bf16-mixed", "bf16-pure"}},
      {"optimizer", {"adamw", "sgd"}},
      {"freeze", {"layers:0-0", "embeddings", "*.mlp.*"}},
      {"gradient_mask", {"keep:0.5"}}};
  return kSettings;
}

inline std::vector<Cluster> clusters() {
  return {cpu_ranks(2, kGiB),
          parse_cluster("2x2xRTX3090"),
          parse_cluster("1xH100-80GB"),
          parse_cluster("4xA100-40GB"),
          parse_cluster("1xH100-80GB,host=64GiB"),
          parse_cluster("2xA100-40GB,host=1MB")};
}

inline Drawn draw(std::mt19937_64& random) {
  const std::vector<std::string>& models = small_models();
  Drawn drawn{.model = models[random() % models.size()],
              .cluster = static_cast<int>(random() % clusters().size()),
              .rows = std::int64_t{4} << (random() % 3),
              .capacity = static_cast<std::int64_t>(random() % 101),
              .clip = random() % 3 > 0,
              .set = {}};
  for (const auto& [name, values] : settings()) {
    const bool is_of_space = name != "precision" && name != "optimizer" && name != "freeze" && name != "gradient_mask";
    if (random() % 10 < (is_of_space ? 3U : 8U)) continue;
    drawn.set.emplace_back(name, values[random() % values.size()]);
  }
  return drawn;
}

/// As a person asks.
inline PlanRequest unresolved_request_of(const Drawn& drawn) {
  PlanRequest request = request_for(drawn.model, clusters()[static_cast<std::size_t>(drawn.cluster)]);
  request.job.global_batch = drawn.rows;
  request.job.sequence = drawn.sequence;
  request.clip = drawn.clip;
  for (const auto& [name, value] : drawn.set) fix(request, name, value);
  return request;
}

inline PlanRequest request_of(const Drawn& drawn) {
  PlanRequest request = unresolved_request_of(drawn);
  request = resolved(request);
  return request;
}

inline std::string text_of(const Drawn& drawn) {
  std::string text = fmt::format("{} on {}, {} rows of {}, {} %{}", drawn.model,
                                 clusters()[static_cast<std::size_t>(drawn.cluster)].text, drawn.rows, drawn.sequence,
                                 drawn.capacity, drawn.clip ? "" : ", no clipping");
  for (const auto& [name, value] : drawn.set) text += fmt::format(" {}={}", name, value);
  return text;
}

/// A card that holds about `percent` of the jobs, by what a sample of them needs.
inline Bytes capacity_for(const PlanRequest& request, const std::vector<Job>& jobs, std::int64_t percent) {
  Evaluator evaluator(request);
  std::vector<Bytes> needs;
  for (std::size_t i = 0; i < jobs.size(); i += jobs.size() / 8 + 1) {
    const Estimate& estimate = evaluator.estimate_of(jobs[i]);
    if (!estimate.ranks.empty()) needs.push_back(estimate.ranks.front().upper_bound);
  }
  if (needs.empty()) return kGiB;
  std::ranges::sort(needs);
  const Bytes need = needs[(needs.size() - 1) * static_cast<std::size_t>(percent) / 100];
  return percent < 15 ? Bytes{need.n - need.n / 100} : need;
}

/// The fewest settings with which `holds` is still false.
template <class Holds>
Drawn shrunk(Drawn drawn, const Holds& holds) {
  for (std::size_t i = 0; i < drawn.set.size();) {
    Drawn less = drawn;
    less.set.erase(less.set.begin() + static_cast<std::ptrdiff_t>(i));
    holds(less) ? ++i : (drawn = less, i = 0);
  }
  return drawn;
}

}  // namespace vramfit::testing
