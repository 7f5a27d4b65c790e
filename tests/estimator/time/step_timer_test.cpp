#include "estimator/time/step_timer.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/model_flops.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

struct World {
  ModelSpec spec;
  Cluster cluster;
  Graph graph;
};

World world_of(const std::string& gpus) {
  const ModelSpec spec = testing::small_model("llama");
  return {spec, parse_cluster(gpus), build_graph(spec, {})};
}

StepTime time_of(const World& world, const std::vector<std::pair<std::string, std::string>>& fields) {
  Job job = unresolved_job();
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  std::vector<std::string> notes;
  return step_time(world.graph, resolve_job(job, world.spec, world.cluster, notes), world.cluster);
}

}  // namespace

TEST_CASE("forward FLOPs of a linear chain are two for each weight and token, plus attention's") {
  const World world = world_of("1xH100-80GB");
  const ModelSpec& s = world.spec;
  const double tokens = 2 * 32;
  const auto kv = static_cast<double>(s.num_key_value_heads * s.head_dim),
             q = static_cast<double>(s.num_attention_heads * s.head_dim);
  const auto h = static_cast<double>(s.hidden_size), f = static_cast<double>(s.intermediate_size);
  const double layer_weights = h * q * 2 + h * kv * 2 + 3 * h * f;
  const double linear =
      2 * tokens * (static_cast<double>(s.num_hidden_layers) * layer_weights + h * static_cast<double>(s.vocab_size));
  const double attention = static_cast<double>(s.num_hidden_layers) * 4 * tokens * (32.0 / 2) * q;
  CHECK(forward_flops(world.graph, {.batch = 2, .sequence = 32}) == doctest::Approx(linear + attention));
}

TEST_CASE("recomputing takes longer than keeping") {
  const World world = world_of("8xH100-80GB");
  CHECK(time_of(world, {{"checkpointing", "full"}}).step_seconds >
        time_of(world, {{"checkpointing", "none"}}).step_seconds);
}

TEST_CASE("the same rows in fewer, larger micro-batches take no longer") {
  const World world = world_of("8xH100-80GB");
  const double small = time_of(world, {{"micro_batch", "1"}, {"global_batch", "64"}}).step_seconds;
  CHECK(time_of(world, {{"micro_batch", "8"}, {"global_batch", "64"}}).step_seconds <= small);
}

TEST_CASE("attention composed of calls takes longer than a fused kernel") {
  const World world = world_of("1xH100-80GB");
  CHECK(time_of(world, {{"seq_len", "8192"}, {"attention", "math"}}).compute_seconds >
        time_of(world, {{"seq_len", "8192"}}).compute_seconds);
}

TEST_CASE("fused attention is slower than a product of as many FLOPs, and its backward is 2.5 forwards") {
  const World world = world_of("1xH100-80GB");
  // Long enough that FLOPs decide.
  const StepTime once = time_of(world, {{"seq_len", "262144"}, {"checkpointing", "none"}});
  const StepTime twice = time_of(world, {{"seq_len", "524288"}, {"checkpointing", "none"}});
  // What grows fourfold is attention; what grows twofold is the rest, but for the optimizer's update, which is small:
  // t2 - 2 t1 = 2 x attention of the shorter one.
  const double attention = (twice.compute_seconds - 2 * once.compute_seconds) / 2;
  const ModelSpec& s = world.spec;
  const double length = 262144, width = static_cast<double>(s.num_attention_heads * s.head_dim);
  const double forward = static_cast<double>(s.num_hidden_layers) * 4 * length * (length / 2) * width;
  const Efficiency& efficiency = efficiency_of(world.cluster);
  const auto share = [&](const Efficiency::Attention& of) {
    return efficiency.step_share_alone * (s.head_dim <= 64 ? of.share_64 : of.share_128);
  };
  const double seconds = forward / share(efficiency.attention) + 2.5 * forward / share(efficiency.attention_backward);
  CHECK(attention == doctest::Approx(seconds / world.cluster.card.bf16_flops).epsilon(0.001));
}

TEST_CASE("a chunked loss costs more with each chunk, as each passes over the weight and its gradient") {
  const World world = world_of("1xH100-80GB");
  const auto seconds = [&](std::int64_t chunks) {
    const Graph graph = build_graph(world.spec, {.chunks = chunks});
    Job job = unresolved_job();
    set_job_field(job, job_field_named("loss"), fmt::format("chunked:{}", chunks), "loss");
    set_job_field(job, job_field_named("seq_len"), "4096", "seq_len");
    std::vector<std::string> notes;
    return step_time(graph, resolve_job(job, world.spec, world.cluster, notes), world.cluster);
  };
  CHECK(seconds(8).step_seconds > seconds(4).step_seconds);
  CHECK(seconds(32).step_seconds > seconds(8).step_seconds);
  // Weight read twice in bf16, and its fp32 gradient read and written; the launches are the host's.
  const ModelSpec& s = world.spec;
  const auto weight = static_cast<double>(s.vocab_size * s.hidden_size);
  const double each = weight * (2 * 2 + 2 * 4) / (world.cluster.card.memory_bandwidth * 0.8);
  CHECK(seconds(32).compute_seconds - seconds(16).compute_seconds == doctest::Approx(16 * each).epsilon(0.05));
}

TEST_CASE("each card of a node sends over its own rail: more of them in a group, faster gathers up to the link") {
  const auto communication = [&](const std::string& gpus, const std::string& sharding, const std::string& mesh) {
    return time_of(world_of(gpus), {{"sharding", sharding}, {"mesh", mesh}, {"micro_batch", "1"}})
        .communication_seconds;
  };
  // Sixteen ranks on two nodes of eight gather over eight rails at once, on sixteen nodes of one over one.
  const double eight = communication("2x8xH100-80GB", "full-shard", "shard=16");
  CHECK(communication("16x1xH100-80GB", "full-shard", "shard=16") > eight);
  CHECK(communication("4x4xH100-80GB", "full-shard", "shard=16") > eight);
  CHECK(communication("1x16xH100-80GB", "full-shard", "shard=16") < eight);
}

TEST_CASE("a faster network makes steps over several nodes faster, and changes none within a node") {
  World world = world_of("2x8xH100-80GB");
  const auto seconds = [&](const std::string& network, const std::string& sharding) {
    set_network(world.cluster, network);
    return time_of(world, {{"sharding", sharding}}).communication_seconds;
  };
  CHECK(seconds("100Gbps/card", "full-shard") > seconds("400Gbps/card", "full-shard"));
  CHECK(seconds("100Gbps/card", "full-shard") == seconds("100GB/s/node", "full-shard"));
  CHECK(seconds("100Gbps/card", "no-shard") > seconds("400Gbps/card", "no-shard"));
}

// foundation-model-stack/fms-fsdp@5a296af, README.md: Llama 2 70B with FSDP in bf16, two sequences of 4096 per GPU, and
// the network of a node.
TEST_CASE("published steps of a 70B model over several nodes take longer than their gathers alone") {
  struct Published {
    const char *gpus, *network;
    double tokens_per_second;  // per GPU
  };
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-70B"));
  for (const Published& run :
       {Published{"16x8xA100-80GB", "400Gbps/node", 410}, Published{"12x8xH100-80GB", "800Gbps/node", 890}}) {
    CAPTURE(run.gpus);
    World world{spec, parse_cluster(run.gpus), build_graph(spec, {})};
    set_network(world.cluster, run.network);
    const StepTime time = time_of(
        world, {{"reduce_dtype", "bf16"}, {"seq_len", "4096"}, {"micro_batch", "2"}, {"checkpointing", "full"}});
    CHECK(time.communication_seconds < 2 * 4096 / run.tokens_per_second);
  }
}

TEST_CASE("one card communicates nothing, and full-shard more than shard-grad-op") {
  CHECK(time_of(world_of("1xH100-80GB"), {}).communication_seconds == 0);
  const World world = world_of("8xH100-80GB");
  CHECK(time_of(world, {{"sharding", "full-shard"}}).communication_seconds >
        time_of(world, {{"sharding", "shard-grad-op"}}).communication_seconds);
}

TEST_CASE("a gather is waited for without prefetch, and hides with it") {
  const World world = world_of("8xH100-80GB");
  // So many rows that kernels, and not their launches, take the time.
  const auto time = [&](const char* prefetch) {
    return time_of(world, {{"prefetch", prefetch}, {"micro_batch", "64"}, {"seq_len", "16384"}});
  };
  const StepTime without = time("backward=none,forward=0,limit=0"), with = time("backward=pre,forward=1,limit=0");
  CHECK(with.communication_seconds == doctest::Approx(without.communication_seconds));
  CHECK(with.idle_seconds < without.idle_seconds);
  CHECK(with.step_seconds < without.step_seconds);
}

TEST_CASE("sums over replicas hide behind backward, but for the last bucket") {
  World world = world_of("2x1xH100-80GB");
  set_network(world.cluster, "1Gbps/card");
  const auto time = [&](const std::string& bytes) {
    return time_of(world, {{"sharding", "no-shard"}, {"micro_batch", "64"}, {"bucket_bytes", bytes}});
  };
  const StepTime one = time("26214400"), many = time("1");
  CHECK(one.idle_seconds > 0.999 * one.communication_seconds);
  CHECK(many.idle_seconds < one.idle_seconds);
  CHECK(many.communication_seconds > one.communication_seconds);  // each message has its latency
}

TEST_CASE("gradients accumulated whole are sent once a step") {
  const World world = world_of("8xH100-80GB");
  const auto communication = [&](const std::string& accumulate, const std::string& times) {
    return time_of(world, {{"accumulate", accumulate}, {"micro_batch", "1"}, {"grad_accum", times}})
        .communication_seconds;
  };
  CHECK(communication("unsharded", "1") == communication("sharded", "1"));
  const double reduction_saved = communication("sharded", "2") - communication("unsharded", "2");
  CHECK(reduction_saved > 0);
  CHECK(communication("sharded", "5") - communication("unsharded", "5") == doctest::Approx(4 * reduction_saved));
}

TEST_CASE("a step is what the compute stream does and what it waits") {
  const StepTime time = time_of(world_of("2xcpu-1GiB"), {{"grad_accum", "3"}});
  CHECK(time.step_seconds == doctest::Approx(time.compute_seconds + time.idle_seconds));
  CHECK(time.step_seconds > 0);
}

TEST_CASE("an accumulation of hundreds of millions is timed without walking it") {
  CHECK(time_of(world_of("2xcpu-1GiB"), {{"grad_accum", "268435456"}}).step_seconds > 0);
}

}  // namespace vramfit
