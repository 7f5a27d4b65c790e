// Gradients of another dtype than the parameters they belong to (--gradient-dtype fp32, bf16 or fp16).
#include <doctest/doctest.h>

#include <string>

#include "program/readers/check.h"
#include "tests/program/job_programs.h"

namespace vramfit {

using testing::bytes_called;
using testing::job_of;
using testing::names;
using testing::program_of;
using testing::unit_called;

namespace {

std::string refusal_of(const std::string& settings) {
  return testing::refusal_of("llama/2 2x2 cuda:90:132 " + settings);
}

int runs_of(const program::Program& program, program::Kernel kernel) {
  int count = 0;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* run = std::get_if<program::Run>(&instruction);
    count += run != nullptr && run->kernel == kernel ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("gradients take what their dtype says, parameters and states what they took") {
  for (const char* line :
       {"llama/2 1x4 cuda:90:132 precision=bf16-mixed", "llama/2 1x1 cpu:1:1 precision=bf16-pure state_dtype=fp32",
        "gpt2/2 1x2 cuda:90:132 precision=bf16-pure grad_accum=3 accumulate=unsharded",
        "llama/2 2x2 cuda:90:132 sharding=hybrid-shard optimizer_in_backward=on clip=off",
        "llama/2 1x1 cuda:90:132 precision=bf16-mixed optimizer=adamw-8bit gradient_mask=keep:0.5",
        "llama/2 1x2 cuda:90:132 precision=bf16-mixed master_dtype=fp16 optimizer=adamw-fp8",
        "llama/2 1x2 cuda:90:132 precision=bf16-mixed optimizer=adafactor",
        "llama/2 1x1 cuda:90:132 precision=bf16-mixed method=lora",
        "llama/2 1x1 cuda:90:132 offload=params grad_accum=2"}) {
    const testing::ResolvedJob usual = job_of(line);
    for (const auto& [dtype, bytes] : {std::pair{"fp32", 4}, {"bf16", 2}}) {
      CAPTURE(line);
      CAPTURE(dtype);
      const testing::ResolvedJob job = job_of(std::string(line) + " gradient_dtype=" + dtype);
      const UnitLayout layout = lay_out_units(job.graph, job.job), before = lay_out_units(usual.graph, usual.job);
      Bytes shards, shards_before, gradients;
      for (std::size_t u = 0; u < layout.units.size(); ++u) {
        shards += shard_bytes(layout.units[u]);
        shards_before += shard_bytes(before.units[u]);
        gradients += gradient_bytes(layout.units[u]);
        CHECK(gradient_bytes(layout.units[u]) == layout.units[u].trainable_elements * Bytes{bytes});
      }
      CHECK(shards == shards_before);
      const program::Program program = program_of(job);
      CHECK(program::fault_of(program) == std::nullopt);
      CHECK(bytes_called(program, ": exp_avg") == bytes_called(program_of(usual), ": exp_avg"));
      // With gradients in host memory a shard comes and goes for each micro-batch.
      if (job.job.offload.empty()) CHECK(bytes_called(program, ": gradient shard") == gradients);
    }
  }
}

TEST_CASE("an op writes where gradients stay if it computes in their dtype, whatever parameters are stored in") {
  const auto adds = [](const std::string& settings) {
    return runs_of(program_of(job_of("llama/2 1x1 cuda:90:132 " + settings)), program::Kernel::add_whole);
  };
  CHECK(adds("precision=bf16-pure reduce_dtype=bf16") == 0);
  CHECK(adds("precision=bf16-mixed reduce_dtype=bf16 gradient_dtype=bf16") == 0);
  CHECK(adds("precision=bf16-mixed reduce_dtype=bf16") > 0);
  CHECK(adds("precision=bf16-pure reduce_dtype=bf16 gradient_dtype=fp32") > 0);
}

TEST_CASE("replicas send gradients in the dtype in which they are kept") {
  const auto sent = [](const std::string& settings) {
    const program::Program program = program_of(job_of("llama/2 1x4 cuda:90:132 sharding=no-shard " + settings));
    Bytes bytes;
    for (const program::Instruction& instruction : program.main.instructions) {
      const auto* start = std::get_if<program::Start>(&instruction);
      if (start != nullptr && start->axis == program::Axis::replicate) bytes += start->bytes;
    }
    return bytes;
  };
  const Bytes wide = sent("precision=bf16-mixed"), narrow = sent("precision=bf16-mixed gradient_dtype=bf16");
  CHECK(narrow.n > 0);
  CHECK(wide == Bytes{2 * narrow.n});
  CHECK(sent("precision=bf16-pure gradient_dtype=fp32") == Bytes{2 * sent("precision=bf16-pure").n});
}

TEST_CASE("GPUs update in chunks where gradients have another dtype, as LibTorch's fused kernel takes one") {
  const std::string line = "llama/2 1x1 cuda:90:132 precision=bf16-pure";
  CHECK(bytes_called(program_of(job_of(line)), ": update scratch").n == 0);
  CHECK(bytes_called(program_of(job_of(line + " gradient_dtype=fp32")), ": update scratch").n > 0);
  CHECK(bytes_called(program_of(job_of(line + " gradient_dtype=fp32 kernels=vramfit")), ": update scratch").n == 0);
}

TEST_CASE("what isn't fp32 of an update in chunks has an equal share of its scratch") {
  struct Row {
    const char* settings;
    int numbers;  // of an element
  };
  for (const auto& [settings, numbers] :
       {Row{"precision=bf16-pure gradient_dtype=fp32", 3}, Row{"precision=bf16-pure state_dtype=fp32", 2},
        Row{"precision=bf16-pure gradient_dtype=fp16", 4}, Row{"precision=bf16-mixed gradient_dtype=bf16", 1},
        Row{"precision=bf16-mixed state_dtype=bf16 gradient_dtype=fp16", 3},
        Row{"optimizer=sgd precision=bf16-pure gradient_dtype=fp32", 2},
        Row{"optimizer=sgd precision=bf16-mixed gradient_dtype=fp16", 1},
        Row{"optimizer=lion precision=bf16-pure gradient_dtype=fp16", 3},
        Row{"optimizer=lion precision=bf16-mixed gradient_dtype=bf16", 1}}) {
    CAPTURE(settings);
    const testing::ResolvedJob job = job_of(std::string("llama/2 1x1 cuda:90:132 ") + settings);
    std::int64_t elements = 0;
    for (const Unit& unit : lay_out_units(job.graph, job.job).units) elements += unit.trainable_elements;
    CHECK(bytes_called(program_of(job), ": update scratch") == Bytes{numbers * 4 * elements});
  }
}

TEST_CASE("the loss is scaled where gradients add up in fp16, and only there") {
  const std::string line = "llama/2 1x1 cuda:90:132 precision=bf16-mixed";
  CHECK(scales_loss(job_of(line + " gradient_dtype=fp16").job));
  CHECK_FALSE(scales_loss(job_of(line + " gradient_dtype=bf16").job));
  CHECK(scales_loss(job_of(line + " storage_dtype=fp16").job));
  CHECK_FALSE(scales_loss(job_of(line + " storage_dtype=fp16 gradient_dtype=fp32").job));
}

TEST_CASE("what takes gradients of the parameters' dtype alone is refused by name, with what would answer") {
  for (const char* name : {"adamw", "adamw:paged", "adamw-8bit", "adamw-4bit", "adamw-fp8", "adamw-fp8-blocks", "sgd",
                           "lion", "adafactor"}) {
    CAPTURE(name);
    CHECK(refusal_of(std::string("gradient_dtype=bf16 optimizer=") + name).empty());
  }
  CHECK(refusal_of("precision=bf16-pure gradient_dtype=fp32 optimizer=adamw-stochastic").empty());
  CHECK(names(refusal_of("gradient_dtype=bf16 optimizer=adamw:foreach"),
              "LibTorch's calls take one dtype: use --optimizer adamw:fused, or leave out --gradient-dtype)"));
  CHECK(names(refusal_of("gradient_dtype=fp16 optimizer_in_backward=on clip=off"),
              "--optimizer-in-backward on with --loss-scale auto ("));
  CHECK(names(refusal_of("precision=bf16-mixed gradient_dtype=fp16 optimizer_in_backward=on clip=off"),
              "use --loss-scale none, or --gradient-dtype bf16)"));
  CHECK(refusal_of("precision=bf16-mixed gradient_dtype=bf16 optimizer_in_backward=on clip=off").empty());
  CHECK(refusal_of("gradient_dtype=fp16 loss_scale=none optimizer_in_backward=on clip=off").empty());
  CHECK(names(refusal_of("runtime=pytorch-fsdp2 modeling=torchtitan gradient_dtype=bf16"),
              "--gradient-dtype bf16 with --runtime pytorch-fsdp2 (--stack vramfit has it)"));
}

}  // namespace vramfit
