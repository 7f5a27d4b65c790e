// transformers' Trainer with FSDP2. That its step is what accelerate sets up is tested in tests/oracle/hf_trainer,
// event by event.
#include <doctest/doctest.h>

#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/pytorch/calls/kernels.h"
#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "program/stages/adapters.h"
#include "tests/support/devices.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using testing::kH100;
const Cluster kFour = parse_cluster("4xH100-80GB");

/// The Trainer with FSDP2, and one field more.
Job trainer_job(const std::string& field = "", const std::string& value = "") {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), kFour));
  if (!field.empty()) job_field_named(field).set(job, value);
  return job;
}

program::Program recorded(const Job& job) {
  std::vector<std::string> notes;
  const ModelSpec spec = testing::small_llama();
  return program::make_program(
      {.graph = build_graph(spec, {}), .job = resolve_job(job, spec, kFour, notes), .device = kH100, .coords = {}});
}

/// Of a program's buffers with that category, and a label that ends so.
Bytes bytes_of(const Job& job, Category category, std::string_view label) {
  const program::Program made = recorded(job);
  Bytes bytes;
  for (const program::Buffer& buffer : made.main.buffers) {
    const std::string& name = made.labels[static_cast<std::size_t>(buffer.label)];
    if (buffer.category == category && name.ends_with(label)) bytes += buffer.bytes;
  }
  return bytes;
}

TEST_CASE(
    "the Trainer's FSDP2 reduces in bf16 and converts to the shards' dtype; without mixed precision it need not") {
  const Bytes gradients = bytes_of(trainer_job(), Category::gradients, ": sharded gradients");
  CHECK(gradients > Bytes{});
  CHECK(2 * bytes_of(trainer_job(), Category::communication, ": reduce-scatter output") == gradients);
  const Job pure = trainer_job("precision", "bf16-pure");
  CHECK(2 * bytes_of(pure, Category::gradients, ": sharded gradients") == gradients);
  CHECK(bytes_of(pure, Category::communication, ": reduce-scatter output") == Bytes{});
  CHECK(bytes_of(pure, Category::communication, ": all-gather input") == Bytes{});
}

TEST_CASE("the Trainer's steps with FSDP2 are sound programs") {
  for (const char* precision : {"bf16-mixed", "bf16-pure", "fp32"}) {
    for (const char* micro_batches : {"1", "3"}) {
      Job job = trainer_job("precision", precision);
      job_field_named("grad_accum").set(job, micro_batches);
      const auto fault = program::fault_of(recorded(job));
      CHECK_MESSAGE(!fault, fault.value_or(""));
    }
  }
}

TEST_CASE("the Trainer takes the norm of gradients that it doesn't clip") {
  const ModelSpec spec = testing::small_llama();
  std::vector<std::string> notes;
  const Graph graph = build_graph(spec, {});
  const Job job = resolve_job(trainer_job(), spec, kFour, notes);
  const auto instructions = [&](bool clips) {
    return program::make_program({.graph = graph, .job = job, .device = kH100, .coords = {}, .run = {.clip = clips}})
        .main.instructions.size();
  };
  CHECK(instructions(false) == instructions(true));
}

TEST_CASE("the Trainer's FSDP2 reduces in a step's last micro-batch alone") {
  const auto reductions = [](const char* micro_batches) {
    const program::Program made = recorded(trainer_job("grad_accum", micro_batches));
    std::size_t count = 0;
    for (const program::Instruction& instruction : made.main.instructions) {
      const auto* start = std::get_if<program::Start>(&instruction);
      if (start != nullptr && start->collective == program::Collective::reduce_scatter) ++count;
    }
    return count;
  };
  CHECK(reductions("1") > 0);
  CHECK(reductions("3") == reductions("1"));
}

TEST_CASE(
    "with cpu_offload, a rank has in host memory its shards and gradients as pinned by PyTorch's pool, and states") {
  const ModelSpec spec = testing::small_llama();
  const Graph graph = build_graph(spec, {});
  for (const char* precision : {"bf16-mixed", "bf16-pure"}) {
    CAPTURE(precision);
    Job job = trainer_job("offload", "params");
    job_field_named("precision").set(job, precision);
    const program::Program made = recorded(job);
    CHECK(program::fault_of(made) == std::nullopt);
    const std::int64_t width = std::string_view(precision) == "bf16-pure" ? 2 : 4;
    Bytes expected;
    for (const Parameter& parameter : graph.parameters) {
      const std::int64_t rows = parameter.shape.front();
      const std::int64_t bytes = ceil_div(rows, 4) * (element_count(parameter) / rows) * width;
      const auto pinned = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
      expected += Bytes{2 * pinned + 2 * bytes};
    }
    CHECK(host_bytes(made) == expected);
    for (const program::Buffer& buffer : made.main.buffers) {
      const bool is_state = buffer.category == Category::optimizer_state;
      CHECK((!is_state || buffer.space == program::Space::host));
    }
  }
}

TEST_CASE("steps with cpu_offload are sound programs, with accumulation, checkpointing and adapters") {
  for (const auto& [field, value] :
       {std::pair{"grad_accum", "3"}, {"checkpointing", "full"}, {"sharding", "shard-grad-op"}}) {
    Job job = trainer_job("offload", "params");
    job_field_named(field).set(job, value);
    const auto fault = program::fault_of(recorded(job));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
  std::vector<std::string> notes;
  const ModelSpec spec = testing::small_llama();
  Job lora = trainer_job("offload", "params");
  job_field_named("method").set(lora, "lora");
  lora = resolve_job(lora, spec, kFour, notes);
  const program::Program made =
      program::make_program({.graph = training_graph(spec, lora), .job = lora, .device = kH100, .coords = {}});
  CHECK(program::fault_of(made) == std::nullopt);
}

TEST_CASE("what the Trainer's FSDP2 has no rules for is named") {
  const auto why = [](const char* field, const char* value) {
    const Estimate e = estimate(testing::small_llama(), trainer_job(field, value), kFour, {.suggestions = false});
    CHECK(e.verdict == Verdict::not_modelled);
    return e.why;
  };
  CHECK(why("reduce_dtype", "fp32").starts_with("--reduce-dtype fp32 (accelerate reduces in bf16"));
  CHECK(why("storage_dtype", "bf16").starts_with("--storage-dtype bf16 (with FSDP2 accelerate makes trained weights"));
  CHECK(why("reshard", "last-kept")
            .starts_with("--reshard last-kept (--reshard default is; --stack vramfit has others);"));
  Job replicated = trainer_job("sharding", "hybrid-shard");
  job_field_named("mesh").set(replicated, "replicate=2,shard=2");
  CHECK(estimate(testing::small_llama(), replicated, kFour, {.suggestions = false})
            .why.starts_with("--modeling transformers with replicas"));
  CHECK(why("offload", "activations")
            .starts_with("--offload activations with FSDP2 (its cpu_offload is --offload params"));
  for (const char* optimizer : {"adamw-8bit", "adamw:paged", "adafactor"}) {
    const std::string said = why("optimizer", optimizer);
    CHECK(said.find("with FSDP2 (its first step fails on sharded weights") != std::string::npos);
    CHECK(said.find("; your own script shows it: ") != std::string::npos);
  }
  Job on_host = trainer_job("precision", "fp16-mixed");
  job_field_named("offload").set(on_host, "params");
  CHECK(estimate(testing::small_llama(), on_host, kFour, {.suggestions = false}).verdict == Verdict::fits);
}

TEST_CASE("weights in 4 bits are sharded, and each rank has all of their scales") {
  const auto numbers = [](const char* cluster, const char* what) {
    const ModelSpec spec = testing::small_llama();
    std::vector<std::string> notes;
    Job job = trainer_job("method", "qlora");
    const Job resolved = resolve_job(job, spec, parse_cluster(cluster), notes);
    const program::Program made = program::make_program(
        {.graph = training_graph(spec, resolved), .job = resolved, .device = kH100, .coords = {}});
    CHECK(program::fault_of(made) == std::nullopt);
    for (const program::Buffer& buffer : made.main.buffers) {
      if (made.labels[static_cast<std::size_t>(buffer.label)].ends_with(what)) return buffer.bytes.n;
    }
    return std::int64_t{0};
  };
  const std::int64_t shard = numbers("2xH100-80GB", "shard of model.layers.0.mlp.up_proj.weight");
  CHECK(shard > 0);
  CHECK(shard == 2 * numbers("4xH100-80GB", "shard of model.layers.0.mlp.up_proj.weight"));
  CHECK(numbers("2xH100-80GB", "whole model.layers.0.mlp.up_proj.weight") == 2 * shard);
  const std::int64_t scales = numbers("2xH100-80GB", "model.layers.0.mlp.up_proj.weight: scales");
  CHECK(scales == 2 * shard / 32);  // a byte for 64 codes, of which each byte has two
  CHECK(scales == numbers("4xH100-80GB", "model.layers.0.mlp.up_proj.weight: scales"));
}

TEST_CASE("with adapters, only they are cast for all-gathers and reduced, and the norm is the root's") {
  const ModelSpec spec = testing::small_llama();
  std::vector<std::string> notes;
  const Job job = resolve_job(trainer_job("method", "lora"), spec, kFour, notes);
  const Graph graph = training_graph(spec, job);
  const program::Program made = program::make_program({.graph = graph, .job = job, .device = kH100, .coords = {}});
  CHECK(program::fault_of(made) == std::nullopt);
  const auto bytes = [&](std::string_view label) {
    Bytes sum;
    for (const program::Buffer& buffer : made.main.buffers) {
      if (made.labels[static_cast<std::size_t>(buffer.label)].ends_with(label)) sum += buffer.bytes;
    }
    return sum;
  };
  Bytes adapters;  // of rank 0, in bf16
  for (const Parameter& parameter : graph.parameters) {
    const std::int64_t rows = parameter.shape.front();
    if (parameter.name.find("lora_") == std::string::npos) continue;
    adapters += ceil_div(rows, 4) * (element_count(parameter) / rows) * Bytes{2};
  }
  CHECK(adapters > Bytes{});
  CHECK(bytes(": all-gather input") == adapters);
  CHECK(bytes(": reduce-scatter output") == adapters);
  CHECK(bytes("root: gathered model.norm.weight") > Bytes{});
}

TEST_CASE("tied weights put the embedding into the last unit, which is gathered when forward begins") {
  const auto gathered_first = [](bool tied) {
    ModelSpec spec = testing::small_llama();
    spec.tie_word_embeddings = tied;
    std::vector<std::string> notes;
    const program::Program made = program::make_program({.graph = build_graph(spec, {}),
                                                         .job = resolve_job(trainer_job(), spec, kFour, notes),
                                                         .device = kH100,
                                                         .coords = {}});
    for (const program::Buffer& buffer : made.main.buffers) {
      const std::string& name = made.labels[static_cast<std::size_t>(buffer.label)];
      if (name.ends_with(": all-gather output")) return name;
    }
    return std::string();
  };
  CHECK(gathered_first(false) == "embed_tokens: all-gather output");
  CHECK(gathered_first(true) == "lm_head: all-gather output");
}

TEST_CASE("ids over which embeddings' gradients are summed take tiles of the card's own size") {
  const auto scratch = [](int capability, std::int64_t ids) {
    return eager::embedding_unique_scratch(ids, {.name = "", .compute_capability = capability, .sm_count = 100});
  };
  // Sizes at which torch 2.11 was seen to allocate more.
  for (const auto& [capability, most] :
       {std::pair{80, 28672}, {86, 5120}, {89, 5120}, {90, 71680}, {100, 61440}, {120, 61440}}) {
    CAPTURE(capability);
    CHECK(scratch(capability, most) == Bytes{1279});
    CHECK(scratch(capability, most + 1) == Bytes{1535});
  }
}

}  // namespace
}  // namespace vramfit
