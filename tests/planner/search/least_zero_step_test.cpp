// Bounds of ZeRO's steps that need no walk, against whole walks.
#include "estimator/time/least_zero_step.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "estimator/time/activation_seconds.h"
#include "estimator/time/seconds.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/stages/adapters.h"
#include "tests/planner/drawn_walks.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::drawn;
using testing::drawn_jobs;
using testing::drawn_of_deepspeed;
using testing::fix;
using testing::resolved;

namespace {

/// Of a job's step what is known without a walk, with what its kernels compute, and all of it.
struct Compared {
  LeastZeroStep least;
  double bound = 0, whole = 0;
};

/// None if it isn't modelled.
std::optional<Compared> compared(const PlanRequest& request, const Job& job, const Efficiency& efficiency) {
  const Graph graph = training_graph(request.spec, job);
  try {
    const program::Program program = program::make_program({.graph = graph,
                                                            .job = job,
                                                            .device = request.cluster.card.device,
                                                            .coords = {},
                                                            .run = {.clip = request.clip},
                                                            .labels = false});
    const LeastZeroStep least = least_zero_step(graph, job, request.cluster, efficiency);
    const double computed = activation_seconds(program, request.cluster, efficiency);
    return Compared{.least = least,
                    .bound = std::max(computed + least.kernels, least.collectives) + least.after_backward,
                    .whole = seconds_of(program, request.cluster, efficiency).step_seconds};
  } catch (const NotModelled&) {
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("no step of ZeRO is shorter than its collectives, its kernels with activations and its update on the host") {
  std::mt19937 random(20261203);
  int bounded = 0, sending = 0, updating = 0;  // of these, nearly all of a step that does little else
  for (int round = 0; round < 60; ++round) {
    PlanRequest request = drawn_of_deepspeed(random);
    Efficiency efficiency = efficiency_of(request.cluster);
    const std::int64_t slow = drawn(random, {0, 1, 2});  // what small models otherwise wait for least
    if (slow > 0) fix(request, "method", "full");
    if (slow == 1) request.cluster.card.link_bandwidth = 1e7;
    if (slow == 2) {
      efficiency.host_memory_bandwidth = 1e7;
      fix(request, "offload", "optimizer");
    }
    if (drawn(random, {0, 1}) == 0) fix(request, "overlap_comm", drawn(random, {0, 1}) == 0 ? "on" : "off");
    for (const Job& job : drawn_jobs(request, random, 4)) {
      CAPTURE(request.spec.num_hidden_layers);
      CAPTURE(slow);
      CAPTURE(job_as_flags(job, unresolved_job()));
      const std::optional<Compared> of = compared(request, job, efficiency);
      if (!of) continue;
      CHECK(of->bound <= of->whole);
      const bool is_full = job.method == Method::full;
      CHECK((of->least.collectives > 0) == (is_full && job.mesh.shard > 1));
      if (!is_full) continue;
      ++bounded;
      const bool is_close = 10 * of->bound > 9 * of->whole;
      if (slow == 1 && is_close) ++sending;
      if (slow == 2 && is_close) ++updating;
    }
  }
  MESSAGE(bounded << " bounds, " << sending << " of steps that send, and " << updating << " of updates, nearly exact");
  CHECK(bounded > 60);
  CHECK(sending > 10);
  CHECK(updating > 5);
}

TEST_CASE("a large model's bound without a whole walk is nearly what its step takes") {
  PlanRequest request = testing::catalog_request("meta-llama/Llama-3.1-8B", "8xH100-80GB");
  fix(request, "runtime", "deepspeed");
  fix(request, "modeling", "transformers");
  fix(request, "seq_len", "4096");
  fix(request, "checkpointing", "full");
  for (const char* offload : {"none", "optimizer", "params"}) {
    CAPTURE(offload);
    fix(request, "offload", offload);
    const std::optional<Compared> of = compared(request, resolved(request).job, efficiency_of(request.cluster));
    REQUIRE(of);
    CHECK(of->bound <= of->whole);
    CHECK(5 * of->bound > 4 * of->whole);
  }
}

}  // namespace vramfit
