#include "program/stages/scaled_masters.h"

#include <doctest/doctest.h>

#include <string>

#include "program/readers/check.h"
#include "tests/program/job_programs.h"

namespace vramfit {

using testing::bytes_called;
using testing::job_of;
using testing::layout_of;
using testing::names;
using testing::program_of;
using testing::unit_called;

namespace {

constexpr const char* kScaled = " master_dtype=fp16";

std::string refusal_of(const std::string& settings) {
  return testing::refusal_of("llama/2 2x2 cuda:90:132 " + settings + kScaled);
}

/// Where a kernel runs last, of this unit or of any (-1).
std::size_t last_run(const program::Program& program, program::Kernel kernel, int unit = -1) {
  for (std::size_t i = program.main.instructions.size(); i-- > 0;) {
    const auto* run = std::get_if<program::Run>(&program.main.instructions[i]);
    if (run != nullptr && run->kernel == kernel && (unit < 0 || run->unit == unit)) return i;
  }
  FAIL("no such run");
  return 0;
}

}  // namespace

TEST_CASE("shards of a layer's matrices take two bytes and their scales four, those of norms what they took") {
  for (const char* shape : {"1x1", "1x4"}) {
    const std::string line = std::string("llama/2 ") + shape + " cuda:90:132 precision=bf16-mixed";
    const UnitLayout layout = layout_of(line + kScaled), plain = layout_of(line);
    const Unit &layer = unit_called(layout, "layers.0"), &without = unit_called(plain, "layers.0");
    CHECK(layer.scales == 7);
    REQUIRE(layer.storages.size() == 2);
    CHECK(layer.storages[0].dtype == Dtype::f16);
    CHECK(layer.storages[0].elements == layer.scaled_elements);
    CHECK(layer.storages[1].dtype == Dtype::f32);
    CHECK(layer.storages[1].first == layer.scaled_elements);
    CHECK(layer.storages[1].elements == trained_beside_scaled(layer));
    std::int64_t end = 0;
    for (std::size_t slot = 0; slot < layer.parameters.size(); ++slot) {
      const UnitParameter& p = layer.parameters[slot];
      CHECK(p.is_scaled == (slot < 7));
      CHECK(p.is_scaled == (p.row_elements > 1));
      CHECK(p.shard_offset >= end);
      end = p.shard_offset + p.shard_elements;
      CHECK((end <= layer.scaled_elements) == p.is_scaled);
    }
    CHECK(gradient_bytes(layer) == layer.trainable_elements * Bytes{4});
    CHECK(shard_bytes(layer) ==
          layer.scaled_elements * Bytes{2} + trained_beside_scaled(layer) * Bytes{4} + Bytes{7 * std::int64_t{4}});
    CHECK(layer.gathered_elements == without.gathered_elements);
    CHECK(shard_bytes(unit_called(layout, "head")) == shard_bytes(unit_called(plain, "head")));
  }
}

TEST_CASE("a layer of scaled numbers alone is gathered, though they have the dtype that is computed in") {
  const Unit layer = unit_called(
      layout_of(std::string("llama/2 1x1 cuda:90:132 precision=fp16-mixed freeze=*norm*,embeddings,head") + kScaled),
      "layers.0");
  CHECK_FALSE(layer.gathered_is_shard);
}

TEST_CASE("what is frozen in fp16 has no scale and lies apart") {
  const Unit layer = unit_called(
      layout_of(std::string("llama/2 1x1 cpu:1:1 freeze=*q_proj* frozen_dtype=fp16") + kScaled), "layers.0");
  CHECK(layer.scales == 6);
  REQUIRE(layer.storages.size() == 3);
  CHECK(layer.storages[2].dtype == Dtype::f16);
  CHECK_FALSE(layer.storages[2].is_scaled);
  CHECK(layer.parameters.back().shard_offset == 0);
}

TEST_CASE("a program allocates numbers to update unit by unit, and keeps no fp32 copy of a matrix") {
  for (const char* line :
       {"llama/2 1x1 cuda:90:132", "llama/2 1x4 cpu:1:1", "gpt2/2 1x2 cuda:90:132 grad_accum=3 gradient_dtype=fp8",
        "llama/2 1x1 cuda:90:132 precision=fp8 optimizer=adafactor", "llama/2 1x2 cuda:90:132 precision=fp16-mixed",
        "llama/2 2x2 cuda:90:132 sharding=hybrid-shard optimizer_in_backward=on clip=off",
        "llama/3 1x2 cuda:90:132 freeze=layers:0 quantization=int8", "llama/2 1x2 cuda:90:132 wrap=none"}) {
    CAPTURE(line);
    const testing::ResolvedJob job = job_of(std::string(line) + kScaled);
    const program::Program program =
        program_of(job, {.clip = job.clip, .saves = true, .saves_full = job.job.quantization == "none"});
    CHECK(program::fault_of(program) == std::nullopt);
    Bytes numbers, scales;
    for (const Unit& unit : lay_out_units(job.graph, job.job).units) {
      if (unit.scales > 0) numbers += unit.trainable_elements * Bytes{4};
      scales += unit.scales * Bytes{4};
    }
    CHECK(bytes_called(program, ": numbers to update") == numbers);
    CHECK(bytes_called(program, ": scales of the shard") == scales);
  }
}

TEST_CASE("masters that are read or updated after a step's update are found") {
  const program::Program sound = program_of(job_of(std::string("llama/2 1x2 cpu:1:1 precision=bf16-mixed") + kScaled));
  CHECK(program::fault_of(sound) == std::nullopt);
  const program::Instruction update = sound.main.instructions[last_run(sound, program::Kernel::round_scaled)];
  for (const program::Kernel kernel :
       {program::Kernel::gather_own, program::Kernel::read_scaled, program::Kernel::round_scaled}) {
    CAPTURE(static_cast<int>(kernel));
    program::Program spoiled = sound;
    program::Instruction late = sound.main.instructions[last_run(sound, kernel, std::get<program::Run>(update).unit)];
    const auto at = static_cast<std::ptrdiff_t>(last_run(sound, program::Kernel::round_scaled));
    spoiled.main.instructions.insert(spoiled.main.instructions.begin() + at + 1, std::move(late));
    for (program::Section& section : spoiled.sections) {
      for (std::size_t* end : {&section.begin, &section.end}) *end += *end > static_cast<std::size_t>(at) ? 1 : 0;
    }
    CHECK(names(program::fault_of(spoiled).value_or(""), "which this step has updated"));
  }
}

TEST_CASE("what needs parameters in another form is refused by name, with what would answer") {
  CHECK(refusal_of("").empty());
  CHECK(refusal_of("sharding=shard-grad-op offload=activations gradient_mask=keep:0.5").empty());
  CHECK(names(refusal_of("precision=bf16-pure"), "--master-dtype fp16 with --storage-dtype bf16 ("));
  CHECK(names(refusal_of("offload=optimizer"), "--master-dtype fp16 with --offload optimizer ("));
  CHECK(names(refusal_of("offload=params"), "--master-dtype fp16 with --offload params ("));
  CHECK(names(refusal_of("load=rank0"), "--master-dtype fp16 with --load rank0 ("));
  CHECK(names(refusal_of("method=lora"), "--master-dtype fp16 with --method lora (adapters alone are trained"));
  CHECK(names(refusal_of("freeze=layers:0-1"), "--master-dtype fp16: no matrix of a layer is trained"));
  CHECK(names(refusal_of("optimizer=adamw-stochastic"), "--master-dtype fp16 with --optimizer adamw-stochastic"));
  CHECK(names(refusal_of("runtime=pytorch-fsdp2 modeling=torchtitan"),
              "--master-dtype fp16 with --runtime pytorch-fsdp2 (--stack vramfit has it)"));
}

}  // namespace vramfit
