// What is known of jobs under PyTorch's runtimes before anything is walked through, and of which walks of few blocks
// tell nothing.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <fmt/format.h>

#include "planner/search/best_first.h"
#include "planner/search/least_walked.h"
#include "program/make_program.h"
#include "program/readers/host_bytes.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::fix;
using testing::resolved;
using testing::torchtitan_request;

namespace {

struct Case {
  std::string gpus, runtime, sharding, method, offload;
};

PlanRequest request_of(const Case& each) {
  PlanRequest request = testing::catalog_request("meta-llama/Llama-3.2-3B", each.gpus);
  fix(request, "seq_len", "64");
  fix(request, "checkpointing", "full");
  fix(request, "runtime", each.runtime);
  fix(request, "modeling", "transformers");
  if (!each.sharding.empty()) fix(request, "sharding", each.sharding);
  if (!each.method.empty()) fix(request, "method", each.method);
  if (!each.offload.empty()) fix(request, "offload", each.offload);
  return request;
}

/// Both as shares of what the whole program takes; 0 of 0 is 0.
struct Shares {
  double card = 0, host = 0;
};

Shares shares_of(const Case& each) {
  const PlanRequest request = resolved(request_of(each));
  const Graph graph = training_graph(request.spec, request.job);
  const program::Program program = program::make_program({.graph = graph,
                                                          .job = request.job,
                                                          .device = request.cluster.card.device,
                                                          .coords = {},
                                                          .run = {.clip = true},
                                                          .labels = false});
  const auto share = [](Bytes least, Bytes all) {
    return least.n == 0 ? 0 : static_cast<double>(least.n) / static_cast<double>(all.n);
  };
  return {.card = share(LeastWalked::without_walk(graph, request.job), folded_peaks(program, Bytes{1}).requested),
          .host = share(LeastWalked::in_host_memory(graph, request.job), host_bytes(program))};
}

const char* const kEight = "8xH100-80GB,host=64GiB";

}  // namespace

TEST_CASE("without a walk, no more is known of a job than it takes, and weights that are loaded whole are") {
  for (const char* sharding : {"shard-optimizer", "shard-grad-op", "full-shard"}) {
    for (const char* method : {"full", "lora", "qlora"}) {
      for (const char* offload : {"", "optimizer", "params"}) {
        if (offload == std::string("params") && sharding != std::string("full-shard")) continue;
        CAPTURE(fmt::format("{} {} {}", sharding, method, offload));
        const Shares shares = shares_of({kEight, "deepspeed", sharding, method, offload});
        CHECK(shares.card <= 1);
        CHECK(shares.card > 0);
        CHECK(shares.host <= 1);
        if (offload == std::string()) CHECK(shares.host == 0);
        if (offload != std::string() && method == std::string("full")) CHECK(shares.host > 0.25);
        if (method == std::string("qlora")) CHECK(shares.card > 0.2);
      }
    }
  }
  for (const char* method : {"full", "lora", "qlora"}) {
    CAPTURE(method);
    const Shares shares = shares_of({"1xH100-80GB", "pytorch", "", method, ""});
    CHECK(shares.card <= 1);
    CHECK(shares.card > 0.2);
  }
  const Shares offloaded = shares_of({kEight, "pytorch-fsdp2", "full-shard", "", "params"});
  CHECK(offloaded.card == 0);
  CHECK(offloaded.host <= 1);
  CHECK(offloaded.host > 0.25);
}

TEST_CASE("what certainly keeps more in host memory than a node has is passed over without a walk") {
  for (const char* host : {"16GiB", "4096GiB"}) {
    CAPTURE(host);
    PlanRequest request = testing::catalog_request("meta-llama/Llama-3.1-8B", fmt::format("1xH100-80GB,host={}", host));
    fix(request, "runtime", "deepspeed");
    fix(request, "modeling", "transformers");
    fix(request, "seq_len", "512");
    fix(request, "global_batch", "1");
    fix(request, "offload", "optimizer");
    request = resolved(request);
    Evaluator evaluator(request);
    SearchCounts counts;
    BestFirst queue(evaluator, request, {{.job = request.job}}, BestBy::speed, counts);
    const bool is_too_little = host == std::string("16GiB");
    CHECK(queue.next(kNoLimit).has_value() != is_too_little);
    CHECK((evaluator.timings() == 0) == is_too_little);
    CHECK(queue.passed_over().empty() != is_too_little);
  }
}

TEST_CASE("blocks that differ are not bounded by few of them") {
  PlanRequest request = torchtitan_request();
  request.spec.num_hidden_layers = 27;
  Job job = resolved(request).job;
  const Graph graph = training_graph(request.spec, job);
  const Efficiency efficiency = efficiency_of(request.cluster);
  LeastWalked least(request.spec, request.cluster, efficiency, {});
  CHECK(least.of(graph, job));
  Graph other = graph;
  other.segments[7].ops[0].attributes.eps += 1;
  CHECK_FALSE(LeastWalked(request.spec, request.cluster, efficiency, {}).of(other, job));
  job.freeze = {"*layers.3.*"};
  CHECK_FALSE(least.of(graph, job));
}

}  // namespace vramfit
