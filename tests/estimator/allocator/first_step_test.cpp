#include "estimator/allocator/first_step.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "estimator/allocator/ledger_replay.h"
#include "estimator/allocator/requests.h"
#include "estimator/rank_estimate.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/make_program.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

Job resolved(const ModelSpec& spec, const Cluster& cluster, const Settings& settings) {
  Job job = unresolved_job();
  for (const auto& [name, value] : settings) job_field_named(name).set(job, value);
  std::vector<std::string> notes;
  return resolve_job(job, spec, cluster, notes);
}

/// Jobs that a search may try one after the other.
std::vector<Job> similar_jobs(const ModelSpec& spec, const Cluster& cluster) {
  std::vector<Job> jobs;
  for (const char* checkpointing : {"none", "full", "every:2"}) {
    for (const char* accumulation : {"1", "2", "4"}) {
      for (const char* finish : {"early", "end"}) {
        for (const char* loss : {"full", "chunked:2", "chunked:4", "chunked-forward:4"}) {
          jobs.push_back(resolved(spec, cluster,
                                  {{"seq_len", "512"},
                                   {"micro_batch", "2"},
                                   {"grad_accum", accumulation},
                                   {"checkpointing", checkpointing},
                                   {"reduce_finish", finish},
                                   {"loss", loss}}));
        }
      }
    }
  }
  return jobs;
}

program::Program program_of(const Graph& graph, const Job& job, const Cluster& cluster) {
  return program::make_program(
      {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = {}, .labels = false});
}

Bytes reserved_in_first_step(const Ledger& requests, const Job& job) {
  CardMemory card(Placement{AddressOrder::ascending, 0});
  LedgerReplay replay(allocator_settings(job.allocator), card);
  for (const Event& event : requests.events) replay.add(event);
  return Bytes{replay.stats().reserved.peak};
}

TEST_CASE(
    "a first step reserves no more than the job, and nearly as much as its replay, whatever was tried before it") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  const Cluster cluster = parse_cluster("4xRTX3090");
  FirstSteps steps;
  for (const Job& job : similar_jobs(spec, cluster)) {
    CAPTURE(job_as_flags(job, unresolved_job()));
    const Graph graph = training_graph(spec, job);
    const program::Program program = program_of(graph, job, cluster);
    const Bytes most = fold(requests_of(program, 2), job, cluster.card.device).peak_reserved;
    const Ledger first = requests_of(program, 1);
    CHECK_FALSE(steps.reserve(first, job.allocator, most + Bytes{1}));
    const Bytes reserved = reserved_in_first_step(first, job);
    for (const std::int64_t per_mille : {900, 970, 990, 999, 1000, 1001}) {
      const Bytes below{reserved.n / 1000 * per_mille};
      CHECK(steps.reserve(first, job.allocator, below) == FirstSteps().reserve(first, job.allocator, below));
    }
    if (job.accumulation <= 2) CHECK(steps.reserve(first, job.allocator, Bytes{reserved.n / 100 * 99}));
  }
}

TEST_CASE("thousands of short first steps can be tried, though each takes addresses that are not used again") {
  ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  spec.num_hidden_layers = 1;
  const Cluster cluster = parse_cluster("4xRTX3090");
  FirstSteps steps;
  for (const char* loss : {"full", "chunked:2"}) {
    const Job job = resolved(spec, cluster, {{"seq_len", "512"}, {"micro_batch", "2"}, {"loss", loss}});
    const Graph graph = training_graph(spec, job);
    const Ledger first = requests_of(program_of(graph, job, cluster), 1);
    const Bytes reserved = reserved_in_first_step(first, job);
    for (int i = 0; i < 1000; ++i) {
      CHECK(steps.reserve(first, job.allocator, Bytes{reserved.n / 2}));
      CHECK_FALSE(steps.reserve(first, job.allocator, Bytes{2 * reserved.n}));
    }
  }
}

TEST_CASE("a first step says nothing of allocators that place segments anywhere") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  const Cluster cluster = parse_cluster("4xRTX3090");
  const Job job = resolved(spec, cluster, {{"seq_len", "512"}, {"micro_batch", "1"}, {"allocator", "native"}});
  const Graph graph = training_graph(spec, job);
  CHECK_FALSE(FirstSteps().reserve(requests_of(program_of(graph, job, cluster), 1), job.allocator, Bytes{1}));
}

}  // namespace
}  // namespace vramfit
