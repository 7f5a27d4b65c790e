// transformers' Trainer with DDP. That its step is what PyTorch does is tested in tests/oracle/hf_trainer, event by
// event.
#include "program/pytorch/wrappers/ddp.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/readers/check.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

const Cluster kTwo = parse_cluster("2xH100-80GB");

program::Program recorded(const std::vector<std::pair<std::string, std::string>>& settings) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), kTwo, true));
  job_field_named("sharding").set(job, "no-shard");
  for (const auto& [name, value] : settings) job_field_named(name).set(job, value);
  std::vector<std::string> notes;
  const ModelSpec spec = testing::small_llama();
  return program::make_program({.graph = build_graph(spec, {}),
                                .job = resolve_job(job, spec, kTwo, notes),
                                .device = kTwo.card.device,
                                .coords = {}});
}

int all_reduces(const program::Program& program) {
  int count = 0;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* start = std::get_if<program::Start>(&instruction);
    count += static_cast<int>(start != nullptr && start->collective == program::Collective::all_reduce);
  }
  return count;
}

TEST_CASE("a bucket ends with the parameter by which it is full, and the first one is full sooner") {
  const std::vector<std::int64_t> limits{10, 100};
  CHECK(eager::buckets_of(std::vector<std::int64_t>{4, 4, 4, 60, 39, 1, 5}, limits) ==
        Buckets{{0, 1, 2}, {3, 4, 5}, {6}});
  CHECK(eager::buckets_of(std::vector<std::int64_t>{500, 100, 99}, limits) == Buckets{{0}, {1}, {2}});
  CHECK(eager::buckets_of({}, limits).empty());
}

TEST_CASE("buckets are another copy of the gradients, made anew after a first step without looking for unused ones") {
  const auto made = [](const char* checkpointing) {
    const program::Program whole = recorded({{"checkpointing", checkpointing}});
    Bytes bytes;
    for (const program::Instruction& instruction : whole.main.instructions) {
      const auto* allocate = std::get_if<program::Allocate>(&instruction);
      if (allocate == nullptr) continue;
      const program::Buffer& buffer = whole.main.buffers[static_cast<std::size_t>(allocate->buffer)];
      if (whole.labels[static_cast<std::size_t>(buffer.label)] == "ddp: bucket of gradients") bytes += buffer.bytes;
    }
    return bytes;
  };
  Bytes parameters;
  for (const Parameter& parameter : build_graph(testing::small_llama(), {}).parameters) {
    parameters += element_count(parameter) * Bytes{4};
  }
  CHECK(made("none") == parameters);
  CHECK(made("full") == 2 * parameters);
}

TEST_CASE("only a step's last micro-batch reduces, and each bucket once") {
  const int once = all_reduces(recorded({}));
  CHECK(once > 0);
  CHECK(all_reduces(recorded({{"grad_accum", "3"}})) == once);
}

TEST_CASE("steps with DDP are sound programs") {
  for (const char* checkpointing : {"none", "full"}) {
    for (const char* micro_batches : {"1", "3"}) {
      const auto fault = program::fault_of(recorded({{"checkpointing", checkpointing}, {"grad_accum", micro_batches}}));
      CHECK_MESSAGE(!fault, fault.value_or(""));
    }
  }
}

TEST_CASE("pytorch-ddp is PyTorch without sharding") {
  Job job = unresolved_job();
  job_field_named("runtime").set(job, "pytorch-ddp");
  CHECK(job.runtime == Runtime::pytorch);
  CHECK(job.sharding == "no-shard");
}

}  // namespace
}  // namespace vramfit
