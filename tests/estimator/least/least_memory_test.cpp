#include "estimator/least/least_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "estimator/time/step_timer.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/optimizers/optimizers.h"
#include "job/resolve_job.h"
#include "program/stages/fp8_gradients.h"
#include "program/stages/offload.h"
#include "program/stages/optimizer_in_backward.h"
#include "program/stages/scaled_masters.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

struct Choice {
  const char* field;
  std::vector<const char*> values;
};

std::vector<const char*> listed_optimizers() {
  std::vector<const char*> names;
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> all;
    for (const OptimizerName& row : optimizer_names()) all.emplace_back(row.name);
    all.insert(all.end(), {"adamw:foreach", "adamw:loop", "adamw:paged", "adamw-8bit:paged"});
    return all;
  }();
  names.reserve(kNames.size());
  for (const std::string& name : kNames) names.push_back(name.c_str());
  return names;
}

// What moves memory, with values that make every term of the bound count.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> kChoices{
      {"precision", {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed", "fp8"}},
      {"reduce_dtype", {"fp32", "bf16"}},
      {"buffer_dtype", {"fp32", "bf16"}},
      {"attention", {"auto", "math"}},
      {"deterministic", {"on", "off"}},
      {"load", {"each", "rank0"}},
      {"sharding", {"no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"}},
      {"reshard", {"default", "last-kept", "always", "never", "2"}},
      {"wrap", {"layer", "layers:2", "layers:3", "none", "size:4000", "pattern:*.mlp,*.self_attn"}},
      {"wrap_embeddings", {"on", "off"}},
      {"prefetch",
       {"backward=pre,forward=1,limit=0", "backward=post,forward=0,limit=0", "backward=none,forward=0,limit=1",
        "backward=none,forward=1,limit=0", "backward=post,forward=2,limit=0", "backward=none,forward=3,limit=2"}},
      {"reduce_finish", {"early", "end"}},
      {"accumulate", {"sharded", "unsharded"}},
      {"reshard_head", {"on", "off"}},
      {"bucket_bytes", {"2000", "26214400"}},
      {"gradient_mask", {"none", "keep:0.5"}},
      {"checkpointing", {"none", "full", "every:2", "every:3"}},
      {"loss", {"full", "chunked:3", "chunked:5", "chunked-forward:3"}},
      {"freeze", {"embeddings", "layers:0-0", "*.mlp.*", "head"}},
      {"seq_len", {"16", "61", "128"}},
      {"micro_batch", {"1", "3", "4"}},
      {"grad_accum", {"1", "2", "5"}},
      {"optimizer", listed_optimizers()},
      {"optimizer_in_backward", {"off", "on"}},
      {"offload",
       {"none", "optimizer", "optimizer+gradients", "params", "activations", "activations:every:2",
        "optimizer,activations", "params,activations:every:3"}},
      {"gradient_dtype", {"fp8", "fp8-sent", "fp32", "bf16", "fp16"}},
      {"master_dtype", {"fp16"}}};
  return kChoices;
}

std::optional<Job> draw(std::mt19937_64& random, const ModelSpec& spec, const Cluster& cluster) {
  Job job = unresolved_job();
  for (const Choice& choice : choices()) {
    if (random() % 3 == 0) continue;  // as it is by default
    const std::string_view field = choice.field;
    if ((field == "freeze" || field == "gradient_dtype" || field == "master_dtype") && random() % 3 != 0) continue;
    const char* value = choice.values[random() % choice.values.size()];
    set_job_field(job, job_field_named(choice.field), value, choice.field);
  }
  if (job.sharding.starts_with("hybrid")) {
    const std::int64_t replicas = random() % 2 == 0 || cluster.cards() < 4 ? 2 : cluster.cards() / 2;
    job.mesh = {.replicate = replicas, .shard = cluster.cards() / replicas};
  }
  try {
    std::vector<std::string> notes;
    Job resolved = resolve_job(job, spec, cluster, notes);
    require_offload(resolved);
    require_optimizer_in_backward(resolved);
    require_fp8_gradients(resolved);
    require_scaled_masters(resolved);
    return resolved;
  } catch (const Error&) {
    return std::nullopt;  // a contradiction, or not modelled
  }
}

}  // namespace

TEST_CASE("the bound is never above what the counted step requests, for jobs drawn at random") {
  std::mt19937_64 random(14);
  const std::vector<Cluster> clusters{parse_cluster("2x2xH100-80GB"), parse_cluster("4xcpu-4GiB"),
                                      parse_cluster("1xRTX4090")};
  std::vector<double> shares;
  int offloaded = 0, updated_in_backward = 0;
  std::vector<double> host_shares;  // of jobs whose activations leave
  while (shares.size() < 2000) {
    const std::string model = testing::small_models()[random() % testing::small_models().size()];
    const ModelSpec spec = testing::small_model(model);
    const Cluster& cluster = clusters[random() % clusters.size()];
    const std::optional<Job> job = draw(random, spec, cluster);
    if (!job) continue;
    CAPTURE(model);
    CAPTURE(cluster.text);
    CAPTURE(job_as_flags(*job, unresolved_job()));
    try {
      const Graph graph = build_graph(spec, loss_options(*job));
      const RankEstimate rank = estimate_rank(graph, *job, cluster, {.run = {.clip = !job->optimizer_in_backward}});
      LeastMemory least(cluster);
      const Bytes bound = least.requested(graph, *job);
      CHECK(bound <= rank.peak_requested);
      CHECK(least.total(graph, *job) <= rank.total);
      const LeastMemory::Parts parts = least.parts_of(graph, *job);
      const Bytes host = least.host(parts, graph, *job, {});
      CHECK(host <= rank.host);
      CHECK(least.host(parts, graph, *job, OpenChoices{OpenChoice::checkpointing}) <= host);
      offloaded += host > Bytes{} ? 1 : 0;
      if (offload_of(*job).activations && rank.host > Bytes{}) {
        host_shares.push_back(static_cast<double>(host.n) / static_cast<double>(rank.host.n));
      }
      updated_in_backward += job->optimizer_in_backward ? 1 : 0;
      if (least.is_too_much(parts, graph, *job, {}, least.total(graph, *job)))
        CHECK(verdict_of(rank, cluster) != Verdict::fits);
      shares.push_back(static_cast<double>(bound.n) / static_cast<double>(rank.peak_requested.n));
    } catch (const NotModelled&) {
      continue;
    } catch (const InputError&) {
      continue;  // a wrapping that the model has no modules for
    }
  }
  CHECK(offloaded > 20);
  std::ranges::sort(host_shares);
  REQUIRE(host_shares.size() > 20);
  CHECK(host_shares[host_shares.size() / 2] > 0.85);  // small models' ids and what loads are the rest
  CHECK(updated_in_backward > 20);
  std::ranges::sort(shares);
  MESSAGE("bound / requested, median: ", shares[shares.size() / 2], ", least: ", shares.front());
  CHECK(shares[shares.size() / 2] > 0.9);
}

TEST_CASE("what is kept between jobs changes no bound and no step time") {
  const ModelSpec spec = testing::small_model("llama");
  const Cluster cluster = parse_cluster("2x4xH100-80GB");
  std::map<LossOptions, Graph> graphs;
  for (const LossOptions& loss : std::initializer_list<LossOptions>{
           {}, {.chunks = 3}, {.chunks = 5}, {.chunks = 3, .gradients_in_forward = true}}) {
    graphs.emplace(loss, build_graph(spec, loss));
  }
  LeastMemory shared(cluster);
  StepTimer timer(cluster);
  std::mt19937_64 random(15);
  int compared = 0;
  for (int round = 0; round < 600; ++round) {
    const std::optional<Job> job = draw(random, spec, cluster);
    if (!job) continue;
    CAPTURE(job_as_flags(*job, unresolved_job()));
    const Graph& graph = graphs.at(loss_options(*job));
    try {
      CHECK(shared.requested(graph, *job) == LeastMemory(cluster).requested(graph, *job));
      const StepTime kept = timer.time(graph, *job), fresh = step_time(graph, *job, cluster);
      CHECK(kept.step_seconds == fresh.step_seconds);
      CHECK(kept.compute_seconds == fresh.compute_seconds);
      CHECK(kept.communication_seconds == fresh.communication_seconds);
      CHECK(kept.idle_seconds == fresh.idle_seconds);
      ++compared;
    } catch (const Error&) {
      continue;
    }
  }
  CHECK(compared > 200);
}

TEST_CASE("the bound grows with each part that it counts: states, micro-batch, kept units, unsharded accumulation") {
  const ModelSpec spec = testing::small_model("llama");
  const Cluster cluster = parse_cluster("4xcpu-4GiB");
  const Graph graph = build_graph(spec, {});
  LeastMemory least(cluster);
  const auto bound = [&](const std::vector<std::pair<std::string, std::string>>& fields) {
    Job job = unresolved_job();
    for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
    std::vector<std::string> notes;
    return least.requested(graph, resolve_job(job, spec, cluster, notes));
  };
  CHECK(bound({{"sharding", "no-shard"}}) > bound({{"sharding", "full-shard"}}));
  CHECK(bound({{"micro_batch", "8"}, {"seq_len", "128"}}) > bound({{"micro_batch", "4"}, {"seq_len", "128"}}));
  const std::pair<std::string, std::string> rows{"micro_batch", "8"}, length{"seq_len", "128"};
  CHECK(bound({rows, length}) > bound({rows, length, {"checkpointing", "every:2"}}));
  CHECK(bound({rows, length, {"checkpointing", "every:2"}}) > bound({rows, length, {"checkpointing", "full"}}));
  CHECK(bound({rows, {"reshard", "never"}}) > bound({rows, {"reshard", "always"}}));
  CHECK(bound({rows, {"grad_accum", "2"}, {"accumulate", "unsharded"}}) > bound({rows, {"grad_accum", "2"}}));
  CHECK(bound({{"seq_len", "4"}}) > bound({{"seq_len", "4"}, {"optimizer_in_backward", "on"}}));
}

TEST_CASE(
    "the bound doesn't count gradients of several layers once an update within the backward pass has freed them") {
  const ModelSpec spec = testing::small_model("phi3");
  const Cluster cluster = parse_cluster("1xRTX4090");
  Job job = unresolved_job();
  const std::pair<const char*, const char*> fields[]{
      {"wrap", "layers:3"},
      {"checkpointing", "every:3"},
      {"optimizer", "adamw-4bit:fused"},
      {"optimizer_in_backward", "on"},
      {"loss", "chunked-forward:3"},
      {"attention", "math"},
      {"seq_len", "128"},
      {"micro_batch", "4"},
      {"deterministic", "on"},
      {"precision", "bf16-mixed"},
  };
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const Graph graph = build_graph(spec, loss_options(job));
  const RankEstimate rank = estimate_rank(graph, job, cluster, {.run = {.clip = false}});
  CHECK(LeastMemory(cluster).requested(graph, job) <= rank.peak_requested);
}

TEST_CASE("the bound counts units that are gathered ahead in forward, and the last block's where it is kept") {
  const ModelSpec spec = testing::small_model("llama");
  const Cluster cluster = parse_cluster("4xcpu-4GiB");
  const Graph graph = build_graph(spec, {});
  LeastMemory least(cluster);
  const auto bound = [&](const char* prefetch, const char* reshard) {
    Job job = unresolved_job();
    const std::pair<const char*, const char*> fields[]{
        {"sharding", "full-shard"}, {"seq_len", "1"},    {"optimizer", "sgd"}, {"freeze", "*_proj*,embeddings,head"},
        {"prefetch", prefetch},     {"reshard", reshard}};
    for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
    std::vector<std::string> notes;
    return least.requested(graph, resolve_job(job, spec, cluster, notes));
  };
  const Bytes one = bound("backward=none,forward=0,limit=0", "always");
  const Bytes two = bound("backward=none,forward=1,limit=0", "always");
  CHECK(two > one);
  CHECK(bound("backward=none,forward=2,limit=0", "always") > two);
  CHECK(bound("backward=none,forward=0,limit=0", "last-kept") > one);
}

}  // namespace vramfit
