#include "estimator/time/least_seconds.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <string>

#include "base/error.h"
#include "estimator/time/step_timer.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/not_modelled.h"
#include "program/stages/adapters.h"
#include "tests/support/random_jobs.h"

namespace vramfit {
namespace {

/// Drawn clusters are devices without rates.
Cluster with_rates(Cluster cluster) {
  const Cluster rated = parse_cluster(cluster.is_cpu() ? "1xcpu-4GiB" : "2x1xRTX4090");
  const Device device = cluster.card.device;
  cluster.card = rated.card;
  cluster.card.device = device;
  cluster.network_bandwidth = rated.network_bandwidth;
  return cluster;
}

std::string bound_above_time(const testing::ResolvedJob& drawn) {
  const Cluster cluster = with_rates(drawn.cluster);
  const double bound = LeastSeconds(cluster).step_seconds(drawn.graph, drawn.job);
  const double time = step_time(drawn.graph, drawn.job, cluster).step_seconds;
  return bound <= time ? "" : fmt::format("{} s at least, but {} s", bound, time);
}

/// The bound as a share of the time.
double share_of(const std::string& model, const std::string& gpus,
                const std::vector<std::pair<std::string, std::string>>& fields) {
  const ModelSpec spec = catalog_spec(*find_in_catalog(model));
  const Cluster cluster = parse_cluster(gpus);
  Job job = unresolved_job();
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const Graph graph = training_graph(spec, job);
  return LeastSeconds(cluster).step_seconds(graph, job) / step_time(graph, job, cluster).step_seconds;
}

}  // namespace

TEST_CASE("the bound is never above the time of the step, for jobs drawn at random") {
  const testing::Trial trial = testing::try_random_jobs(250, 500'000, bound_above_time);
  CHECK(trial.failure == "");
}

TEST_CASE("the bound is never above the time of jobs that offload gradients or activations, whatever lands when") {
  int offloaded = 0;
  const testing::Trial trial = testing::try_random_jobs(250, 900'000, [&](testing::ResolvedJob drawn) {
    if (drawn.job.runtime != Runtime::vramfit || drawn.job.mesh.replicate > 1) return std::string();
    for (const char* offload :
         {"optimizer+gradients", "params", "activations", "optimizer+gradients,activations", "params,activations"}) {
      set_job_field(drawn.job, job_field_named("offload"), offload, "offload");
      try {
        require_rules(drawn.job, drawn.cluster);
        if (std::string why = bound_above_time(drawn); !why.empty()) return offload + (" " + why);
        ++offloaded;
      } catch (const Error&) {
        continue;  // not with other choices of the job
      }
    }
    return std::string();
  });
  CHECK(trial.failure == "");
  CHECK(offloaded > 150);
}

TEST_CASE("reductions wait neither for gathers that may come behind them nor for one another's sums") {
  const std::pair<std::string, std::string> small_units{"wrap", "size:6000"}, sent{"gradient_dtype", "fp8-sent"};
  CHECK(share_of("google/gemma-2-9b", "2x1xRTX4090", {small_units, {"seq_len", "4096"}, {"loss", "full"}}) <= 1);
  CHECK(share_of("meta-llama/Llama-3.2-1B", "8x8xA100-80GB", {sent, {"seq_len", "128"}, {"loss", "full"}}) <= 1);
}

TEST_CASE("what is known of a job that gathers units again isn't taken for one that keeps them") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  const Cluster cluster = parse_cluster("2x8xRTX4090");
  std::map<std::int64_t, Graph> graphs;  // a bound knows a graph by its address
  LeastSeconds shared(cluster);
  double before = 0;
  for (const auto& [sharding, reshard] : {std::pair{"full-shard", "always"}, std::pair{"full-shard", "last-kept"},
                                          std::pair{"shard-grad-op", "default"}}) {
    Job job = unresolved_job();
    set_job_field(job, job_field_named("sharding"), sharding, "sharding");
    set_job_field(job, job_field_named("reshard"), reshard, "reshard");
    std::vector<std::string> notes;
    job = resolve_job(job, spec, cluster, notes);
    const std::int64_t chunks = loss_options(job).chunks;
    const Graph& graph = graphs.try_emplace(chunks, build_graph(spec, loss_options(job))).first->second;
    const double bound = shared.step_seconds(graph, job);
    CHECK(bound == LeastSeconds(cluster).step_seconds(graph, job));
    CHECK(bound != before);
    before = bound;
  }
}

TEST_CASE("the bound is near the time where gathers are prefetched, and where none is") {
  const std::string model = "meta-llama/Llama-3.1-8B", gpus = "8xH100-80GB";
  const std::pair<std::string, std::string> none{"prefetch", "backward=none,forward=0"}, rows{"micro_batch", "8"};
  CHECK(share_of(model, gpus, {rows, {"sharding", "shard-grad-op"}}) > 0.95);
  CHECK(share_of(model, gpus, {rows, {"sharding", "shard-grad-op"}, none}) > 0.95);
  CHECK(share_of(model, gpus, {rows, {"sharding", "shard-grad-op"}, {"checkpointing", "full"}}) > 0.95);
}

TEST_CASE("the bound is near the time where the embedding is gathered for the head again") {
  const std::string model = "google/gemma-2-2b", gpus = "8xRTX4090";
  CHECK(share_of(model, gpus, {{"seq_len", "1024"}, {"grad_accum", "4"}}) > 0.99);
  CHECK(share_of(model, gpus, {{"seq_len", "1024"}, {"micro_batch", "4"}, {"checkpointing", "full"}}) > 0.99);
}

TEST_CASE("the bound is near the time where the host needs as long to launch kernels as these take") {
  const std::string model = "HuggingFaceTB/SmolLM2-360M", gpus = "2x8xH200,host=64GiB";
  const std::pair<std::string, std::string> few{"seq_len", "128"}, frozen{"method", "qlora"}, away{"offload", "params"};
  CHECK(share_of(model, gpus, {few, {"wrap", "none"}}) > 0.99);
  CHECK(share_of(model, gpus, {few, {"checkpointing", "full"}, {"grad_accum", "3"}}) > 0.99);
  CHECK(share_of(model, gpus, {few, {"offload", "optimizer+gradients"}, {"grad_accum", "3"}}) > 0.97);
  // What arrives as codes is made whole by kernels on the stream of copies, which the host launches, too.
  CHECK(share_of(model, gpus, {few, frozen, away}) > 0.97);
  CHECK(share_of(model, gpus, {few, frozen, away, {"grad_accum", "4"}}) > 0.97);
}

TEST_CASE("the bound is within a thousandth of the time where units are layers or groups of them") {
  const std::string model = "meta-llama/Llama-3.1-8B";
  using Fields = std::vector<std::pair<std::string, std::string>>;
  for (const Fields& fields : std::initializer_list<Fields>{
           {},
           {{"checkpointing", "full"}},
           {{"checkpointing", "full"}, {"reduce_finish", "end"}, {"grad_accum", "4"}},
           {{"checkpointing", "every:3"}, {"prefetch", "backward=pre,forward=2"}, {"grad_accum", "3"}},
           {{"prefetch", "backward=none,forward=0"}, {"reshard", "last-kept"}},
           {{"sharding", "shard-grad-op"}, {"grad_accum", "4"}, {"accumulate", "unsharded"}},
           {{"reshard", "2"}, {"prefetch", "backward=none,forward=1"}, {"grad_accum", "2"}},
           {{"wrap", "layers:2"}},
           {{"gradient_dtype", "fp8"}, {"grad_accum", "3"}},
           {{"gradient_dtype", "bf16"}, {"reduce_dtype", "bf16"}, {"grad_accum", "2"}},
           {{"precision", "bf16-pure"}, {"gradient_dtype", "fp32"}, {"grad_accum", "3"}},
           {{"master_dtype", "fp16"}},
           {{"gradient_dtype", "fp8-sent"}, {"grad_accum", "2"}},
           {{"wrap", "layers:5"}, {"checkpointing", "every:3"}, {"prefetch", "backward=pre,forward=2"}},
           {{"wrap", "layers:3"}, {"reshard", "2"}, {"checkpointing", "full"}, {"grad_accum", "2"}},
           {{"wrap", "layers:4"}, {"sharding", "shard-grad-op"}, {"freeze", "layers:0-5"}, {"grad_accum", "3"}},
           {{"offload", "optimizer+gradients"}},
           {{"offload", "optimizer+gradients"}, {"checkpointing", "full"}, {"grad_accum", "4"}},
           {{"offload", "activations"}},
           {{"offload", "activations"}, {"checkpointing", "full"}, {"grad_accum", "2"}},
           {{"offload", "params,activations"}, {"checkpointing", "full"}, {"prefetch", "backward=pre,forward=2"}},
           {{"offload", "params"}, {"reduce_finish", "end"}, {"checkpointing", "every:3"}, {"grad_accum", "2"}}}) {
    for (const char* gpus : {"8xH100-80GB", "8xRTX4090"}) {
      Fields all = fields;
      all.emplace_back("seq_len", "4096");
      std::string text = gpus;
      for (const auto& [name, value] : fields) text += " " + name + "=" + value;
      CAPTURE(text);
      CHECK(share_of(model, gpus, all) > 0.999);
    }
  }
}

}  // namespace vramfit
