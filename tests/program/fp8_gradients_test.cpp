#include "program/stages/fp8_gradients.h"

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

constexpr const char* kFp8 = " gradient_dtype=fp8";

std::string refusal_of(const std::string& settings, const std::string& dtype = kFp8) {
  return testing::refusal_of("llama/2 2x2 cuda:90:132 " + settings + dtype);
}

}  // namespace

TEST_CASE("gradients of a layer's matrices take a byte and their scales four, those of norms what they took") {
  for (const char* shape : {"1x1", "1x4"}) {
    const std::string line = std::string("llama/2 ") + shape + " cuda:90:132 precision=bf16-mixed";
    const UnitLayout layout = layout_of(line + kFp8), plain = layout_of(line);
    const Unit &layer = unit_called(layout, "layers.0"), &without = unit_called(plain, "layers.0");
    CHECK(layer.fp8_gradients == 7);
    CHECK(layer.trainable_elements == without.trainable_elements);
    std::int64_t end = 0;
    for (std::size_t slot = 0; slot < layer.parameters.size(); ++slot) {
      const UnitParameter& p = layer.parameters[slot];
      CHECK(p.has_fp8_gradient == (slot < 7));
      CHECK(p.has_fp8_gradient == (p.row_elements > 1));
      CHECK(p.shard_offset >= end);
      end = p.shard_offset + p.shard_elements;
      CHECK((end <= layer.fp8_gradient_elements) == p.has_fp8_gradient);
    }
    CHECK(gradient_bytes(layer) ==
          gradient_bytes(without) - Bytes{3 * layer.fp8_gradient_elements} + Bytes{7 * std::int64_t{4}});
    const Unit& head = unit_called(layout, "head");
    CHECK(head.fp8_gradients == 0);
    CHECK(gradient_bytes(head) == gradient_bytes(unit_called(plain, "head")));
  }
}

TEST_CASE("a program allocates the codes and their scales once for each layer") {
  for (const char* line : {"llama/2 1x1 cuda:90:132", "llama/2 1x4 cpu:1:1", "gpt2/2 1x2 cuda:90:132 grad_accum=3",
                           "llama/2 1x1 cuda:90:132 precision=bf16-pure",
                           "llama/2 2x2 cuda:90:132 sharding=hybrid-shard optimizer_in_backward=on clip=off"}) {
    CAPTURE(line);
    const testing::ResolvedJob job = job_of(std::string(line) + kFp8);
    const program::Program program = program_of(job);
    CHECK(program::fault_of(program) == std::nullopt);
    Bytes codes, scales;
    for (const Unit& unit : lay_out_units(job.graph, job.job).units) {
      codes += Bytes{unit.fp8_gradient_elements};
      scales += unit.fp8_gradients * dtype_bytes(Dtype::f32);
    }
    CHECK(bytes_called(program, ": fp8 gradients") == codes);
    CHECK(bytes_called(program, ": scales of fp8 gradients") == scales);
  }
}

TEST_CASE("replicas gather their codes, one bucket's at a time") {
  const std::string line = "llama/3 1x4 cpu:1:1 sharding=no-shard bucket_bytes=1";
  const testing::ResolvedJob job = job_of(line + kFp8);
  const program::Program program = program_of(job);
  CHECK(program::fault_of(program) == std::nullopt);
  const Unit layer = unit_called(lay_out_units(job.graph, job.job), "layers.0");
  CHECK(bytes_called(program, ": fp8 gradients of all replicas") == Bytes{3 * 4 * layer.fp8_gradient_elements});
  int live = 0, most = 0, gathers = 0;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto is_gathered = [&](int buffer) {
      const program::Buffer& b = program.main.buffers[static_cast<std::size_t>(buffer)];
      return program.labels[static_cast<std::size_t>(b.label)].ends_with(": fp8 gradients of all replicas");
    };
    if (const auto* allocate = std::get_if<program::Allocate>(&instruction))
      live += is_gathered(allocate->buffer) ? 1 : 0;
    if (const auto* free = std::get_if<program::Free>(&instruction)) live -= is_gathered(free->buffer) ? 1 : 0;
    most = std::max(most, live);
    const auto* start = std::get_if<program::Start>(&instruction);
    if (start == nullptr || start->collective != program::Collective::all_gather) continue;
    ++gathers;
    CHECK(start->axis == program::Axis::replicate);
    CHECK(start->part == gradient_codes_bytes(layer));
  }
  CHECK(most == 1);
  CHECK(gathers == 3);
}

TEST_CASE("ranks exchange codes of a byte in place of pieces of the reduce dtype") {
  const std::string line = "llama/2 1x4 cuda:90:132 precision=bf16-mixed";
  const testing::ResolvedJob job = job_of(line + " gradient_dtype=fp8-sent"), kept = job_of(line + kFp8);
  const program::Program program = program_of(job);
  CHECK(program::fault_of(program) == std::nullopt);
  const Unit layer = unit_called(lay_out_units(job.graph, job.job), "layers.1");
  std::int64_t matrices = 0, others = 0;
  for (const UnitParameter& p : layer.parameters) (p.has_fp8_gradient ? matrices : others) += p.padded_elements;
  int exchanges = 0;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* start = std::get_if<program::Start>(&instruction);
    if (start == nullptr || start->unit < 0) continue;
    if (start->collective == program::Collective::all_to_all) {
      ++exchanges;
      CHECK(start->bytes == Bytes{matrices + 4 * 4 * layer.fp8_gradients});
      CHECK(start->axis == program::Axis::shard);
    }
  }
  CHECK(exchanges == 2);
  CHECK(bytes_called(program, ": fp8 gradient to send") == Bytes{2 * matrices});
  CHECK(bytes_called(program, ": fp8 gradient of all ranks") == Bytes{2 * matrices});
  const Bytes pieces = bytes_called(program, ": reduce piece"),
              whole = bytes_called(program_of(kept), ": reduce piece");
  CHECK(whole - pieces == Bytes{2 * 4 * matrices});
}

TEST_CASE("frozen matrices have no gradients to keep; of those that are left, a job needs one") {
  const UnitLayout layout = layout_of(std::string("llama/2 1x1 cpu:1:1 freeze=layers:0") + kFp8);
  CHECK(unit_called(layout, "layers.0").fp8_gradients == 0);
  CHECK(unit_called(layout, "layers.1").fp8_gradients == 7);
  CHECK(names(refusal_of("method=lora"), "--gradient-dtype fp8 with --method lora (adapters alone are trained"));
  CHECK(names(refusal_of("freeze=layers:0-1"), "--gradient-dtype fp8: no matrix of a layer is trained"));
}

TEST_CASE("what needs gradients in another form is refused by name, with what would answer") {
  CHECK(refusal_of("").empty());
  CHECK(refusal_of("sharding=shard-grad-op offload=activations").empty());
  CHECK(names(refusal_of("gradient_mask=keep:0.5"), "--gradient-dtype fp8 with --gradient-mask keep:0.5 ("));
  CHECK(names(refusal_of("offload=optimizer"), "--gradient-dtype fp8 with --offload optimizer ("));
  CHECK(refusal_of("sharding=no-shard").empty());
  CHECK(names(refusal_of("sharding=no-shard gradient_dtype=fp8-sent", ""),
              "--gradient-dtype fp8-sent with --sharding no-shard"));
  CHECK(refusal_of("sharding=hybrid-shard gradient_dtype=fp8-sent", "").empty());
  for (const std::string dtype : {"fp8", "fp8-sent"}) {
    CHECK(names(refusal_of("runtime=pytorch-fsdp2 modeling=torchtitan gradient_dtype=" + dtype, ""),
                "--gradient-dtype " + dtype + " with --runtime pytorch-fsdp2 (--stack vramfit has it)"));
    CHECK(names(refusal_of("freeze=layers:0-1 gradient_dtype=" + dtype, ""),
                "--gradient-dtype " + dtype + ": no matrix of a layer is trained"));
  }
}

}  // namespace vramfit
