#include "planner/search/least_walked.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "estimator/least/least_while_updating.h"
#include "estimator/time/seconds.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/least_reserved.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "tests/planner/drawn_walks.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::drawn;
using testing::drawn_family;
using testing::drawn_jobs;
using testing::drawn_of_deepspeed;
using testing::drawn_text;
using testing::fix;
using testing::fix_trainer;
using testing::request_for;
using testing::resolved;
using testing::set_layers;
using testing::torchtitan_request;

namespace {

/// A model of random sizes under a PyTorch runtime.
PlanRequest drawn_request(std::mt19937& random) {
  const bool is_trainer = drawn(random, {0, 1}) == 1;
  const std::int64_t ranks = drawn(random, {1, 2, 4, 8});
  PlanRequest request = drawn_family(random, ranks, !is_trainer);
  ModelSpec& spec = request.spec;
  set_layers(spec, drawn(random, {27, 32, 45}));
  spec.vocab_size = drawn(random, {2048, 5000, 60000});
  spec.intermediate_size = drawn(random, {96, 512, 3000});
  request.job.sequence = drawn(random, {16, 128, 1024});
  request.job.global_batch = ranks * drawn(random, {1, 2, 4});
  const std::int64_t sharded = drawn(random, {0, 2, 2, is_trainer ? 1 : 2});
  fix(request, "runtime",
      ranks == 1     ? "pytorch"
      : sharded == 0 ? "pytorch-ddp"
                     : fmt::format("pytorch-fsdp{}", sharded));
  if (is_trainer && drawn(random, {0, 1}) == 1) {
    fix_trainer(request, random);
  } else {
    fix(request, "modeling", is_trainer ? "transformers" : "torchtitan");
  }
  fix(request, "attention", "flash");
  if (is_trainer && sharded != 1 && drawn(random, {0, 1}) == 1) fix(request, "method", "lora");
  request.clip = drawn(random, {0, 1}) == 1;
  return request;
}

/// With the whole step in place of what it computes. None if it isn't modelled.
std::optional<LeastOfWalk> walked(const PlanRequest& request, const Graph& graph, const Job& job) {
  try {
    const program::Program program = program::make_program({.graph = graph,
                                                            .job = job,
                                                            .device = request.cluster.card.device,
                                                            .coords = {},
                                                            .run = {.clip = request.clip},
                                                            .labels = false});
    return LeastOfWalk{.requested = folded_peaks(program, Bytes{1}).requested,
                       .reserved = least_reserved(program),
                       .compute_seconds = seconds_of(program, request.cluster).step_seconds};
  } catch (const NotModelled&) {
    return std::nullopt;
  }
}

void check_memory(const LeastOfWalk& bound, const LeastOfWalk& whole) {
  CHECK(bound.requested <= whole.requested);
  CHECK(bound.reserved <= whole.reserved);
}

/// All bounds by micro-batches of at most half as many rows. How many there are.
int check_fewer_rows(LeastWalked& least, const Graph& graph, const Job& job, const LeastOfWalk& whole) {
  int bounds = 0;
  for (std::int64_t rows = 1; 2 * rows <= job.micro_batch; ++rows) {
    CAPTURE(rows);
    const std::optional<LeastOfWalk> bound = least.at_twice_the_rows(graph, job, rows);
    if (bound) check_memory(*bound, whole), ++bounds;
  }
  return bounds;
}

/// What a drawn job is bounded by, and its whole walk.
struct Compared {
  LeastWalked& least;
  const PlanRequest& request;
  const Graph& graph;
  const Job& job;
  const std::optional<LeastOfWalk> bound, whole;
};

/// Calls check(Compared) with at most `most` jobs of each of so many drawn requests.
template <typename Draw, typename Check>
void compare_walks(std::uint32_t seed, int rounds, std::size_t most, const Draw& draw, const Check& check) {
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const PlanRequest request = draw(random);
    const Efficiency efficiency = efficiency_of(request.cluster);
    LeastWalked least(request.spec, request.cluster, efficiency, {.clip = request.clip});
    for (const Job& job : drawn_jobs(request, random, most)) {
      CAPTURE(request.spec.num_hidden_layers);
      CAPTURE(job_as_flags(job, unresolved_job()));
      const Graph graph = training_graph(request.spec, job);
      check(Compared{least, request, graph, job, least.of(graph, job), walked(request, graph, job)});
    }
  }
}

}  // namespace

TEST_CASE("walks of few blocks never say more than a walk of all of them, and most often the same") {
  int bounded = 0, equal = 0, equally_reserved = 0, updating = 0;
  compare_walks(20261126, 60, 4, drawn_request, [&](const Compared& walk) {
    const auto& [least, request, graph, job, bound, whole] = walk;
    CHECK(bound.has_value() == whole.has_value());
    if (!bound || !whole) return;
    check_memory(*bound, *whole);
    const Bytes least_updating = least_while_updating(graph, job);
    CHECK(least_updating <= whole->requested);
    if (4 * least_updating.n > whole->requested.n) ++updating;
    CHECK(bound->compute_seconds <= whole->compute_seconds);
    ++bounded;
    if (bound->requested == whole->requested) ++equal;
    if (bound->reserved == whole->reserved) ++equally_reserved;
  });
  MESSAGE(equal << " of " << bounded << " bounds are exact, " << equally_reserved << " of what is reserved; "
                << updating << " updates need a quarter or more");
  CHECK(bounded > 60);
  CHECK(2 * equal > bounded);
  CHECK(2 * equally_reserved > bounded);
  CHECK(updating > 20);
}

TEST_CASE("under DeepSpeed, activations of few blocks and what is kept never say more than the whole walk") {
  int bounded = 0, of_one_row = 0;
  compare_walks(20261129, 80, 3, drawn_of_deepspeed, [&](const Compared& walk) {
    const auto& [least, request, graph, job, bound, whole] = walk;
    if (!whole) return;
    const std::optional<LeastOfWalk> at_any = least.at_any_batch(graph, job);
    CHECK(least_while_updating(graph, job) <= whole->requested);
    if (at_any) CHECK(at_any->requested <= whole->requested);
    check_fewer_rows(least, graph, job, *whole);
    if (job.sharding == "full-shard" && job.micro_batch * job.accumulation > 1) {
      const std::optional<LeastOfWalk> one_row = walked(request, graph, least.with_one_row(job));
      REQUIRE(one_row);
      check_memory(*one_row, *whole);
      ++of_one_row;
    }
    if (!bound) return;
    check_memory(*bound, *whole);
    CHECK(bound->compute_seconds > 0);
    CHECK(bound->compute_seconds <= whole->compute_seconds);
    ++bounded;
  });
  CHECK(bounded > 30);
  CHECK(of_one_row > 10);
}

namespace {

/// Of a family in which one layer in so many attends to all tokens.
PlanRequest drawn_alternating(std::mt19937& random) {
  const std::int64_t ranks = drawn(random, {1, 2, 8});
  const char* const family = drawn_text(random, {"gemma2", "gemma3_text"});
  PlanRequest request = request_for(family, parse_cluster(fmt::format("{}xH100-80GB", ranks)));
  ModelSpec& spec = request.spec;
  spec.num_hidden_layers = drawn(random, {32, 45});
  const std::int64_t pattern = drawn(random, {2, 3});
  spec.layer_spans.clear();
  for (std::int64_t layer = 1; layer <= spec.num_hidden_layers; ++layer) {
    spec.layer_spans.push_back(layer % pattern == 0 ? AttentionSpan::full : AttentionSpan::sliding);
  }
  spec.vocab_size = drawn(random, {2048, 60000});
  spec.intermediate_size = drawn(random, {96, 3000});
  request.job.sequence = drawn(random, {16, 128, 1024});
  request.job.global_batch = ranks * drawn(random, {1, 2, 4});
  fix(request, "runtime", ranks == 1 ? "pytorch" : drawn_text(random, {"pytorch-fsdp2", "pytorch-ddp", "deepspeed"}));
  fix(request, "modeling", drawn_text(random, {"transformers", "trl"}));
  if (drawn(random, {0, 1}) == 1) fix(request, "method", "lora");
  return request;
}

}  // namespace

TEST_CASE("where kinds of blocks alternate, walks of a few rounds of them never say more than the whole walk") {
  int bounded = 0;
  compare_walks(20261130, 40, 3, drawn_alternating, [&](const Compared& walk) {
    const auto& [least, request, graph, job, bound, whole] = walk;
    if (!whole) return;
    const std::optional<LeastOfWalk> at_any = least.at_any_batch(graph, job);
    if (at_any) check_memory(*at_any, *whole);
    check_fewer_rows(least, graph, job, *whole);
    if (!bound) return;
    check_memory(*bound, *whole);
    CHECK(bound->compute_seconds <= whole->compute_seconds);
    ++bounded;
  });
  CHECK(bounded > 20);
}

TEST_CASE("under DeepSpeed, a large model's bounds are most of what it takes") {
  for (const char* checkpointing : {"none", "full"}) {
    CAPTURE(checkpointing);
    PlanRequest request = testing::catalog_request("meta-llama/Llama-3.1-8B", "8xH100-80GB");
    fix(request, "runtime", "deepspeed");
    fix(request, "modeling", "transformers");
    fix(request, "seq_len", "4096");
    fix(request, "checkpointing", checkpointing);
    const Job job = resolved(request).job;
    const Graph graph = training_graph(request.spec, job);
    const Efficiency efficiency = efficiency_of(request.cluster);
    const std::optional<LeastOfWalk> bound = LeastWalked(request.spec, request.cluster, efficiency, {}).of(graph, job),
                                     whole = walked(request, graph, job);
    REQUIRE(bound);
    REQUIRE(whole);
    CHECK(bound->requested <= whole->requested);
    CHECK(10 * bound->requested.n > 9 * whole->requested.n);
    CHECK(bound->compute_seconds <= whole->compute_seconds);
    CHECK(4 * bound->compute_seconds > 3 * whole->compute_seconds);
  }
}

TEST_CASE("where every Nth block is checkpointed, few blocks of either kind tell the time of the compute stream") {
  PlanRequest request = torchtitan_request();
  request.spec.num_hidden_layers = 45;
  request.spec.intermediate_size = 3000;
  request.job.sequence = 1024;
  const Efficiency efficiency = efficiency_of(request.cluster);
  LeastWalked least(request.spec, request.cluster, efficiency, {});
  for (const char* checkpointing : {"none", "every:4", "every:7", "every:20", "every:45", "full"}) {
    fix(request, "checkpointing", checkpointing);
    const Job job = resolved(request).job;
    CAPTURE(checkpointing);
    const Graph graph = training_graph(request.spec, job);
    const program::Program program = program::make_program(
        {.graph = graph, .job = job, .device = request.cluster.card.device, .coords = {}, .run = {}, .labels = false});
    const std::optional<LeastOfWalk> bound = least.of(graph, job);
    REQUIRE(bound);
    CHECK(bound->compute_seconds == doctest::Approx(seconds_of(program, request.cluster).compute_seconds));
  }
}

TEST_CASE("no micro-batch needs less than one row does, or than half as many rows, whatever is accumulated") {
  std::mt19937 random(20261128);
  int bounded = 0, fewer_rows = 0;  // with more rows than one; bounds by half as many rows or less
  for (int round = 0; round < 50; ++round) {
    PlanRequest request = drawn_request(random);
    request.job.global_batch = request.cluster.cards() * drawn(random, {1, 4, 12});
    request.spec.num_attention_heads = request.spec.num_key_value_heads = drawn(random, {4, 32});
    request.spec.head_dim = drawn(random, {16, 64});
    request.job.sequence = drawn(random, {16, 1024, 2048});
    if (round % 3 == 0) fix(request, "attention", "efficient");
    const Efficiency efficiency = efficiency_of(request.cluster);
    LeastWalked least(request.spec, request.cluster, efficiency, {.clip = request.clip});
    for (const Job& job : drawn_jobs(request, random, 6)) {
      CAPTURE(request.spec.num_attention_heads);
      CAPTURE(job_as_flags(job, unresolved_job()));
      const Graph graph = training_graph(request.spec, job);
      const std::optional<LeastOfWalk> floor = least.at_any_batch(graph, job), whole = walked(request, graph, job);
      CHECK(floor.has_value() == whole.has_value());
      if (!floor || !whole) continue;
      check_memory(*floor, *whole);
      fewer_rows += check_fewer_rows(least, graph, job, *whole);
      const LeastOfWalk bound = least.of(graph, job).value_or(LeastOfWalk{});  // of fewer micro-batches
      check_memory(bound, *whole);
      CHECK(bound.compute_seconds <= whole->compute_seconds);
      if (job.micro_batch * job.accumulation > 1) ++bounded;
    }
  }
  CHECK(bounded > 60);
  CHECK(fewer_rows > 60);
}

namespace {

/// Of models whose blocks are too few, or alternate in too long rounds, to be bounded by fewer of them.
PlanRequest drawn_shallow(std::mt19937& random) {
  const std::int64_t kind = drawn(random, {0, 1, 2});
  PlanRequest request = kind == 0   ? drawn_request(random)
                        : kind == 1 ? drawn_of_deepspeed(random)
                                    : drawn_alternating(random);
  ModelSpec& spec = request.spec;
  set_layers(spec, drawn(random, {2, 5, 12}));
  request.job.global_batch = request.cluster.cards() * drawn(random, {6, 12, 20});
  return request;
}

}  // namespace

TEST_CASE("of a model with few blocks, all of them and few micro-batches never say more than the whole walk") {
  int bounded = 0, alone = 0;
  compare_walks(20261201, 50, 4, drawn_shallow, [&](const Compared& walk) {
    const auto& [least, request, graph, job, bound, whole] = walk;
    if (!whole) return;
    const bool is_zero = job.runtime == Runtime::deepspeed;
    const bool has_many = job.accumulation > 4 && job.modeling != Modeling::trl_grpo && !is_zero;
    CHECK(bound.has_value() == has_many);
    CHECK(least.walks_all_blocks(graph, job) == has_many);
    if (const std::optional<Job> one = least.with_rows(job, job.micro_batch); one && !is_zero) {
      const std::optional<LeastOfWalk> of_one = walked(request, graph, *one);
      REQUIRE(of_one);
      check_memory(*of_one, *whole);
      if (job.accumulation > 1) ++alone;
    }
    if (!bound) return;
    check_memory(*bound, *whole);
    CHECK(bound->compute_seconds > 0);
    CHECK(bound->compute_seconds <= whole->compute_seconds);
    ++bounded;
  });
  CHECK(bounded > 20);
  CHECK(alone > 40);
}

TEST_CASE("of torchtitan's steps, whose micro-batches are all walked through, each counts once") {
  PlanRequest request = testing::catalog_request("meta-llama/Llama-3.1-8B", "8xH100-80GB");
  fix(request, "runtime", "pytorch-fsdp2");
  fix(request, "modeling", "torchtitan-0.2");
  fix(request, "checkpointing", "full");
  fix(request, "seq_len", "4096");
  fix(request, "micro_batch", "1");
  fix(request, "grad_accum", "12");
  const Job job = resolved(request).job;
  const Graph graph = training_graph(request.spec, job);
  LeastWalked least(request.spec, request.cluster, efficiency_of(request.cluster), {.clip = request.clip});
  const std::optional<LeastOfWalk> bound = least.of(graph, job), whole = walked(request, graph, job);
  REQUIRE(bound);
  REQUIRE(whole);
  check_memory(*bound, *whole);
  CHECK(bound->compute_seconds <= whole->compute_seconds);
  CHECK(5 * bound->compute_seconds > 4 * whole->compute_seconds);
}

}  // namespace vramfit
