// Jobs under PyTorch's runtimes drawn at random, for tests of what bounds their walks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/resolve_job.h"
#include "planner/search/space.h"
#include "tests/planner/requests.h"

namespace vramfit::testing {

inline std::int64_t drawn(std::mt19937& random, std::initializer_list<std::int64_t> list) {
  return std::data(list)[std::uniform_int_distribution<std::size_t>(0, list.size() - 1)(random)];
}

inline const char* drawn_text(std::mt19937& random, std::initializer_list<const char*> list) {
  return std::data(list)[std::uniform_int_distribution<std::size_t>(0, list.size() - 1)(random)];
}

/// Of a family whose blocks are alike, on cards of different generations.
inline PlanRequest drawn_family(std::mt19937& random, std::int64_t ranks, bool is_llama) {
  const char* const family =
      is_llama ? "llama" : drawn_text(random, {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma"});
  const char* const card = drawn_text(random, {"H100-80GB", "H100-80GB", "A100-80GB", "RTX4090"});
  return request_for(family, parse_cluster(fmt::format("{}x{}", ranks, card)));
}

/// Of a model whose layers are alike.
inline void set_layers(ModelSpec& spec, std::int64_t layers) {
  spec.num_hidden_layers = layers;
  if (!spec.layer_spans.empty()) spec.layer_spans.resize(static_cast<std::size_t>(layers), spec.layer_spans.front());
}

/// One of TRL's trainers, with options of GRPO's that decide what is scored.
inline void fix_trainer(PlanRequest& request, std::mt19937& random) {
  const std::string modeling = drawn_text(random, {"trl", "trl", "trl-dpo", "trl-reward", "trl-grpo"});
  fix(request, "modeling", modeling);
  if (modeling != "trl-grpo") return;
  fix(request, "grpo", drawn_text(random, {"default", "num_iterations=2", "steps_per_generation=2", "reference"}));
}

/// At most `most` jobs of a request, those that have rules; none of a combination that contradicts itself.
inline std::vector<Job> drawn_jobs(const PlanRequest& request, std::mt19937& random, std::size_t most) {
  std::vector<Job> jobs;
  try {
    jobs = enumerate_jobs(request);
  } catch (const Error&) {
    return {};
  }
  std::ranges::shuffle(jobs, random);
  if (jobs.size() > most) jobs.resize(most);
  std::erase_if(jobs, [&](const Job& job) { return !has_rules(job, request.cluster); });
  return jobs;
}

/// A job of random sizes under DeepSpeed.
inline PlanRequest drawn_of_deepspeed(std::mt19937& random) {
  const std::int64_t ranks = drawn(random, {1, 3, 8});
  PlanRequest request = drawn_family(random, ranks, false);
  set_layers(request.spec, drawn(random, {4, 27, 32}));
  request.spec.vocab_size = drawn(random, {2048, 60000});
  request.spec.intermediate_size = drawn(random, {96, 3000});
  request.job.sequence = drawn(random, {16, 128, 1024});
  request.job.global_batch = ranks * drawn(random, {1, 2, 4, 12});
  fix(request, "runtime", "deepspeed");
  drawn(random, {0, 1}) == 0 ? fix(request, "modeling", "transformers") : fix_trainer(request, random);
  const std::int64_t method = drawn(random, {0, 1, 2, 2});
  if (method < 2) fix(request, "method", method == 0 ? "lora" : "qlora");
  if (drawn(random, {0, 1, 2}) == 0) fix(request, "precision", "fp16-mixed");
  if (drawn(random, {0, 1, 2}) == 0) fix(request, "offload", "optimizer");
  if (drawn(random, {0, 1}) == 0) {  // sizes that bind in a small model
    const auto size = [&] { return drawn(random, {20'000, 300'000, 5'000'000}); };
    fix(request, "zero3_sizes",
        fmt::format("prefetch_bucket_size={},param_persistence_threshold={},max_live_parameters={},"
                    "max_reuse_distance={},sub_group_size={}",
                    size(), drawn(random, {100, 5000}), size(), size(), size()));
    fix(request, "bucket_bytes", fmt::to_string(size()));
  }
  return request;
}

}  // namespace vramfit::testing
