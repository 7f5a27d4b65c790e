// A loop of one's own with accelerate. That its step is what accelerate and PyTorch do is tested in
// tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/readers/check.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

const Cluster kOne = parse_cluster("1xH100-80GB"), kTwo = parse_cluster("2xH100-80GB");

Job accelerate_job(const Cluster& cluster, const Fields& fields, std::string_view stack = "accelerate") {
  const bool is_copied = std::ranges::any_of(fields, [](const auto& field) { return field.second == "no-shard"; });
  Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), cluster, is_copied));
  for (const auto& [name, value] : fields) job_field_named(name).set(job, value);
  return job;
}

program::Program recorded(const Job& job, const Cluster& cluster, bool clip = true) {
  std::vector<std::string> notes;
  const ModelSpec spec = testing::small_llama();
  return program::make_program({.graph = build_graph(spec, {}),
                                .job = resolve_job(job, spec, cluster, notes),
                                .device = cluster.card.device,
                                .coords = {},
                                .run = {.clip = clip}});
}

/// How many buffers have a label with that in it.
int count_of(const program::Program& made, std::string_view part) {
  int count = 0;
  for (const program::Buffer& buffer : made.main.buffers) {
    count += static_cast<int>(made.labels[static_cast<std::size_t>(buffer.label)].find(part) != std::string::npos);
  }
  return count;
}

TEST_CASE("a loop with accelerate counts no labels and doesn't look at its loss, as the Trainer does") {
  const program::Program own = recorded(accelerate_job(kOne, {}), kOne);
  const program::Program trainer = recorded(accelerate_job(kOne, {}, "transformers"), kOne);
  for (const char* label : {"labels that count", "is it a number"}) {
    CAPTURE(label);
    CHECK(count_of(own, label) == 0);
    CHECK(count_of(trainer, label) > 0);
  }
}

TEST_CASE("a loop with accelerate has the next micro-batch on the card beside the one before, not all of a step") {
  const auto most_at_once = [](std::string_view stack) {
    const Job job = accelerate_job(kOne, {{"grad_accum", "4"}}, stack);
    const program::Program made = recorded(job, kOne);
    int live = 0, most = 0;
    const auto is_ids = [&](int buffer) {
      const program::Buffer& of = made.main.buffers[static_cast<std::size_t>(buffer)];
      return made.labels[static_cast<std::size_t>(of.label)] == "inputs: ids";
    };
    for (const program::Instruction& instruction : made.main.instructions) {
      if (const auto* born = std::get_if<program::Allocate>(&instruction)) live += is_ids(born->buffer) ? 1 : 0;
      if (const auto* gone = std::get_if<program::Free>(&instruction)) live -= is_ids(gone->buffer) ? 1 : 0;
      most = std::max(most, live);
    }
    return most;
  };
  CHECK(most_at_once("accelerate") == 2);
  CHECK(most_at_once("transformers") == 8);
}

TEST_CASE("a loop with accelerate takes no norm of gradients that it doesn't clip") {
  for (const Cluster& cluster : {kOne, kTwo}) {
    const Job job = accelerate_job(cluster, {});
    CHECK(count_of(recorded(job, cluster), "clip: ") > 0);
    CHECK(count_of(recorded(job, cluster, false), "clip: ") == 0);
  }
}

TEST_CASE("DDP looks for unused parameters under the Trainer alone") {
  const Fields copied{{"sharding", "no-shard"}};
  CHECK(count_of(recorded(accelerate_job(kTwo, copied), kTwo), "which parameters are used") == 0);
  CHECK(count_of(recorded(accelerate_job(kTwo, copied, "transformers"), kTwo), "which parameters are used") == 1);
}

TEST_CASE("steps of a loop with accelerate are sound programs") {
  for (const char* precision : {"bf16-mixed", "bf16-pure", "fp32", "fp16-mixed"}) {
    for (const char* micro_batches : {"1", "3"}) {
      const Fields fields{{"precision", precision}, {"grad_accum", micro_batches}};
      CAPTURE(precision);
      for (const Cluster& cluster : {kOne, kTwo}) {
        const auto fault = program::fault_of(recorded(accelerate_job(cluster, fields), cluster));
        CHECK_MESSAGE(!fault, fault.value_or(""));
      }
    }
  }
}

TEST_CASE("what a loop with accelerate has no rules for is named") {
  const auto refusal = [](const Cluster& cluster, const Fields& fields) {
    const Estimate e =
        estimate(testing::small_llama(), accelerate_job(cluster, fields), cluster, {.suggestions = false});
    CHECK(e.stack == "accelerate");
    return e.verdict == Verdict::not_modelled ? e.why : "";
  };
  CHECK(refusal(kOne, {}).empty());
  CHECK(refusal(kTwo, {}).empty());
  const auto names = [&](const Cluster& cluster, const Fields& fields, const char* what) {
    const std::string text = refusal(cluster, fields);
    CAPTURE(text);
    CHECK(text.find(what) != std::string::npos);
  };
  for (const Cluster& cluster : {kOne, kTwo}) {
    CHECK(refusal(cluster, {{"method", "lora"}}).empty());
    CHECK(refusal(cluster, {{"method", "qlora"}}).empty());
    names(cluster, {{"optimizer", "sgd"}}, "--optimizer sgd");
    names(cluster, {{"optimizer", "adamw:loop"}}, "--optimizer adamw:loop");
    names(cluster, {{"checkpointing", "every:2"}}, "--checkpointing every:2");
  }
  CHECK(refusal(kOne, {{"optimizer", "adamw-8bit:paged"}}).empty());
  CHECK(refusal(kOne, {{"optimizer", "adafactor"}}).empty());
  names(kTwo, {{"optimizer", "adafactor"}}, "with FSDP2 (its first step fails on sharded weights");
  names(kTwo, {{"optimizer", "adamw-8bit"}}, "with FSDP2 (its first step fails on sharded weights");
  CHECK(refusal(kTwo, {{"offload", "params"}}).empty());
  names(kOne, {{"offload", "params"}}, "--offload params");
  names(kTwo, {{"offload", "optimizer"}}, "--offload optimizer with FSDP2");
  names(kTwo, {{"storage_dtype", "bf16"}}, "--storage-dtype bf16");
}

}  // namespace
}  // namespace vramfit
