// FSDP2 as axolotl prepares a model for it. What it allocates is compared with rehearsals in tests/oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/stages/adapters.h"
#include "tests/program/pytorch/trainer_questions.h"
#include "tests/support/devices.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using testing::Fields;
const Cluster kFour = parse_cluster("4xH100-80GB");

Job sharded_job(const Fields& fields) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), kFour));
  for (const auto& [name, value] : fields) job_field_named(name).set(job, value);
  return job;
}

program::Program recorded(const Fields& fields) {
  std::vector<std::string> notes;
  const ModelSpec spec = testing::small_llama();
  const Job job = resolve_job(sharded_job(fields), spec, kFour, notes);
  return program::make_program(
      {.graph = training_graph(spec, job), .job = job, .device = testing::kH100, .coords = {}});
}

std::ptrdiff_t started(const program::Program& made, program::Collective collective) {
  return std::ranges::count_if(made.main.instructions, [&](const program::Instruction& instruction) {
    const auto* const start = std::get_if<program::Start>(&instruction);
    return start != nullptr && start->collective == collective;
  });
}

const Fields kAdapters{{"method", "lora"}, {"frozen_dtype", "bf16"}, {"kernels", "axolotl"}};
const Fields kAllWeights{{"wrap_embeddings", "off"}, {"storage_dtype", "bf16"}, {"state_dtype", "bf16"}};

TEST_CASE("axolotl's FSDP2 gathers and reduces each matrix of an adapter once a step, by itself") {
  constexpr std::ptrdiff_t kSteps = 2, kBlocks = 2, kMatrices = 14 * kBlocks;
  const program::Program made = recorded(kAdapters), whole = recorded(kAllWeights);
  CHECK(program::fault_of(made) == std::nullopt);
  CHECK(program::fault_of(whole) == std::nullopt);
  // Blocks and root, forward and backward; and how many labels count.
  CHECK(started(whole, program::Collective::all_gather) == kSteps * (2 * (kBlocks + 1) + 1));
  CHECK(started(made, program::Collective::all_gather) ==
        started(whole, program::Collective::all_gather) + kSteps * kMatrices);
  CHECK(started(made, program::Collective::reduce_scatter) == kSteps * kMatrices);
}

TEST_CASE("what is loaded in bf16 stays so, with its states, where accelerate's FSDP2 has fp32") {
  const auto bytes_of = [](const Fields& fields, Category category) {
    Bytes bytes;
    const program::Program made = recorded(fields);
    for (const program::Buffer& buffer : made.main.buffers) {
      const std::string& name = made.labels[static_cast<std::size_t>(buffer.label)];
      if (buffer.category == category && name.find(": shard of ") != std::string::npos) bytes += buffer.bytes;
    }
    return bytes;
  };
  CHECK(bytes_of({}, Category::parameters) > Bytes{});
  CHECK(2 * bytes_of(kAllWeights, Category::parameters) == bytes_of({}, Category::parameters));
}

TEST_CASE("what axolotl's FSDP2 has no rules for is named, and what has some is estimated") {
  const ModelSpec spec = testing::small_llama();
  const auto why = [&](Fields fields, const Fields& more) {
    fields.insert(fields.end(), more.begin(), more.end());
    const Estimate e = estimate(spec, sharded_job(fields), kFour, {.suggestions = false});
    return e.verdict == Verdict::not_modelled ? e.why : "";
  };
  CHECK(why(kAdapters, {}).empty());
  CHECK(why(kAllWeights, {{"kernels", "liger"}}).empty());
  CHECK(why(kAdapters, {{"kernels", "liger+axolotl"}}).empty());  // whose fused loss reads the root's weights
  CHECK(why({{"method", "lora"}}, {{"wrap_embeddings", "off"}}).starts_with("--wrap-embeddings off with adapters"));
  CHECK(why(kAllWeights, {{"offload", "params"}}).starts_with("--wrap-embeddings off with --offload params"));
  const std::string eight = why(kAllWeights, {{"optimizer", "adamw-8bit:torchao"}});
  CHECK(eight.starts_with("--optimizer adamw-8bit:torchao with FSDP2 and trained weights in bf16"));
  CHECK(why({{"wrap_embeddings", "off"}}, {{"optimizer", "adamw-8bit:torchao"}}).empty());
  CHECK(why(kAdapters, {{"modeling", "trl"}}).find("with --modeling trl and FSDP2 (--stack transformers has it)") !=
        std::string::npos);
  CHECK(why({{"modeling", "trl"}}, {{"wrap_embeddings", "off"}})
            .starts_with("--wrap-embeddings off (accelerate gives them units of their own"));
  CHECK(why(kAllWeights, {{"state_dtype", "fp32"}}).starts_with("--storage-dtype bf16 with --state-dtype fp32"));
  const std::string left = why(kAdapters, {{"lora_targets", "q_proj,v_proj"}});
  CHECK(left.starts_with("--kernels axolotl with FSDP2 and adapters that they don't compute"));
  CHECK(why(kAdapters, {{"kernels", "axolotl:o=off"}}) == left);
}

}  // namespace
}  // namespace vramfit
