#include "program/stages/own_kernels.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "program/make_program.h"
#include "program/optimizers/optimizers.h"
#include "program/readers/bytes.h"
#include "program/readers/check.h"
#include "program/readers/peaks.h"
#include "program/stages/fp8_gradients.h"
#include "program/stages/scaled_masters.h"
#include "program/stages/tape.h"
#include "tests/support/job_line.h"

namespace vramfit {

namespace {

program::Program program_of(const std::string& line) {
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line(line));
  return program::make_program(
      {.graph = job.graph, .job = job.job, .device = job.cluster.card.device, .coords = {}, .run = {}});
}

/// Allocations of the first two steps whose label has such an end.
std::ptrdiff_t allocations_named(const program::Program& made, std::string_view end) {
  const Ledger ledger = ledger_of(made, {});
  return std::ranges::count_if(ledger.events, [&](const Event& event) {
    return event.bytes > 0 && event.label >= 0 && ledger.labels[static_cast<std::size_t>(event.label)].ends_with(end);
  });
}

}  // namespace

TEST_CASE("updates and quantized weights with own kernels work in no scratch") {
  struct Row {
    const char *settings, *scratch;
  };
  for (const Row& row :
       {Row{"optimizer=adamw-8bit", "update scratch"},
        Row{"optimizer=adamw-4bit precision=bf16-pure", "update scratch"},
        Row{"optimizer=adamw-fp8-blocks", "update scratch"},
        Row{"optimizer=adamw-stochastic precision=bf16-pure", "update scratch"},
        Row{"precision=bf16-pure state_dtype=fp32", "update scratch"}, Row{"method=qlora", "scratch for codes"},
        Row{"method=lora lora_dropout=0.1", "dropout: words"},
        Row{"method=lora quantization=int8", "scratch for codes"}}) {
    CAPTURE(row.settings);
    const std::string line = std::string("llama 1x2 cuda:90:132 ") + row.settings;
    CHECK(allocations_named(program_of(line), row.scratch) > 0);
    const program::Program own = program_of(line + " kernels=vramfit");
    CHECK(allocations_named(own, row.scratch) == 0);
    CHECK(program::fault_of(own).value_or("").empty());
  }
}

TEST_CASE("gated activations and rotary embeddings with own kernels work in no temporaries") {
  const std::string line = "llama 1x1 cuda:90:132 precision=bf16-pure";
  for (const char* temporary : {"half", "activation_gradient"}) {
    CAPTURE(temporary);
    CHECK(allocations_named(program_of(line), temporary) > 0);
    CHECK(allocations_named(program_of(line + " kernels=vramfit"), temporary) == 0);
  }
}

TEST_CASE("RMS norms with own kernels write gradients where they belong, and sum the weight's in bounded scratch") {
  for (const char* settings :
       {"precision=bf16-pure", "precision=bf16-pure checkpointing=full", "precision=bf16-mixed"}) {
    for (const char* family : {"llama", "gemma2", "qwen3"}) {
      CAPTURE(settings);
      CAPTURE(family);
      const std::string line = fmt::format("{} 1x2 cuda:90:132 {}", family, settings);
      const program::Program own = program_of(line + " kernels=vramfit");
      CHECK(allocations_named(program_of(line), "norm: input_gradient") > 0);
      CHECK(allocations_named(own, "norm: input_gradient") == 0);
      CHECK(allocations_named(own, "norm: weight_gradient") == 0);
      CHECK(allocations_named(own, "norm: partial_rows") > 0);
      CHECK(program::fault_of(own).value_or("").empty());
    }
  }
  const std::string frozen = "llama 1x2 cuda:90:132 method=lora precision=bf16-pure kernels=vramfit";
  CHECK(allocations_named(program_of(frozen), "norm: partial_rows") == 0);
}

TEST_CASE("an addition and the norm right after it are one pass with own kernels") {
  const auto joint_runs = [](const std::string& settings) {
    const program::Program made = program_of("llama 1x1 cuda:90:132 " + settings);
    CHECK(program::fault_of(made).value_or("").empty());
    std::ptrdiff_t joint = 0;
    for (const program::Block& block : made.blocks) {
      joint += std::ranges::count_if(block.code.instructions, [](const program::Instruction& instruction) {
        const auto* run = std::get_if<program::Run>(&instruction);
        return run != nullptr && run->joined >= 0;
      });
    }
    return joint;
  };
  CHECK(joint_runs("precision=bf16-pure") == 0);
  CHECK(joint_runs("precision=bf16-pure kernels=vramfit") > 0);
  CHECK(joint_runs("precision=bf16-pure kernels=vramfit checkpointing=full") > 0);
  // Both summands are read, the sum and its norm written, in one launch instead of two and five passes.
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line("llama 1x1 cuda:90:132 kernels=vramfit"));
  const SharedTapes tapes = make_shared_tapes(tape_inputs(job.graph, job.job, job.cluster.card.device));
  const auto& tape = *tapes[1];
  const auto run = std::ranges::find_if(tape.forward, [](const TapeAction& action) { return action.joined >= 0; });
  REQUIRE(run != tape.forward.end());
  const Rule &add = tape.rules[static_cast<std::size_t>(run->joined)],
             &norm = tape.rules[static_cast<std::size_t>(run->op)];
  REQUIRE(norm.joint_forward.size() == 1);
  CHECK(norm.joint_forward[0].launches == 1);
  CHECK(5 * norm.joint_forward[0].bytes == 4 * (add.work.forward[0].bytes + norm.work.forward[0].bytes));
}

TEST_CASE("a step never takes more memory with own kernels than with LibTorch's functions") {
  constexpr Bytes kGranule{512};
  for (const char* family : {"llama", "gemma", "gemma2", "qwen3", "gpt2", "bert"}) {
    for (const char* settings :
         {"", "precision=bf16-pure", "precision=bf16-pure checkpointing=full",
          "precision=bf16-mixed micro_batch=1 seq_len=16", "precision=bf16-pure optimizer=adamw-fp8",
          "precision=bf16-pure optimizer=adafactor", "precision=fp16-mixed checkpointing=selective",
          "method=lora precision=bf16-mixed", "method=qlora checkpointing=full",
          "method=lora quantization=int8 frozen_dtype=bf16"}) {
      CAPTURE(family);
      CAPTURE(settings);
      const std::string line = fmt::format("{} 1x2 cuda:90:132 {}", family, settings);
      const std::string own = line + " kernels=vramfit";
      CHECK(folded_peaks(program_of(own), kGranule).rounded <= folded_peaks(program_of(line), kGranule).rounded);
    }
  }
}

TEST_CASE("states that the CPU updates are what they are with LibTorch's functions") {
  const std::string line = "llama 1x1 cuda:90:132 optimizer=adamw-8bit offload=optimizer";
  CHECK(allocations_named(program_of(line), "update scratch") ==
        allocations_named(program_of(line + " kernels=vramfit"), "update scratch"));
}

TEST_CASE("Adafactor with own kernels works in two sums for each thread block, and reads the gradient four times") {
  const std::string line = "llama 1x2 cuda:90:132 precision=bf16-pure optimizer=adafactor";
  const program::Program own = program_of(line + " kernels=vramfit");
  CHECK(program::fault_of(own).value_or("").empty());
  CHECK(allocations_named(own, "update scratch") == allocations_named(program_of(line), "update scratch"));
  constexpr std::int64_t kElements = std::int64_t{1} << 22;
  UnitUpdate update{.elements = kElements,
                    .storage = Dtype::bf16,
                    .gradient = Dtype::f32,
                    .device = DeviceKind::cuda,
                    .parameters = 3,
                    .kernels = KernelSource::vramfit};
  const Optimizer& row = optimizer_named("adafactor");
  CHECK(row.scratch(update) == std::int64_t{2} * 2 * 512);
  // Less for small units, down to a single block's sums: LibTorch's calls never work in less.
  for (std::int64_t elements = 1; elements <= kElements; elements += std::max<std::int64_t>(1, elements / 16)) {
    UnitUpdate small = update;
    small.elements = elements;
    const std::int64_t of_kernels = row.scratch(small);
    small.kernels = KernelSource::libtorch;
    CAPTURE(elements);
    CHECK(of_kernels < row.scratch(small));
  }
  update.elements = 192;
  CHECK(row.scratch(update) == std::int64_t{2} * 2 * 12);
  update.elements = kElements;
  CHECK(row.sums[0].work(update).bytes + row.sums[1].work(update).bytes + row.work(update).bytes ==
        (4 * 4 + 3 * 2) * kElements);
  CHECK(row.sums[0].work(update).launches + row.sums[1].work(update).launches + row.work(update).launches == 3 * 7);
}

TEST_CASE("an update with a scale for each parameter works in four numbers for each with own kernels") {
  const std::string line = "llama 1x2 cuda:90:132 precision=bf16-pure optimizer=adamw-fp8";
  const program::Program own = program_of(line + " kernels=vramfit");
  CHECK(program::fault_of(own).value_or("").empty());
  CHECK(allocations_named(own, "update scratch") == allocations_named(program_of(line), "update scratch"));
  UnitUpdate update{.elements = std::int64_t{1} << 22,
                    .storage = Dtype::bf16,
                    .gradient = Dtype::bf16,
                    .device = DeviceKind::cuda,
                    .parameters = 9};
  const Optimizer& row = optimizer_named("adamw-fp8");
  CHECK(row.scratch(update) > (std::int64_t{4} << 20));
  update.kernels = KernelSource::vramfit;
  CHECK(row.scratch(update) == 4 * 9);
}

TEST_CASE("masters in fp16 and gradients in FP8 are read, and masters rounded, at once and in no scratch") {
  const std::string line = "llama 1x2 cuda:90:132 master_dtype=fp16 gradient_dtype=fp8";
  const program::Program own = program_of(line + " kernels=vramfit");
  CHECK(program::fault_of(own).value_or("").empty());
  CHECK(allocations_named(program_of(line), "scratch for scales") > 0);
  CHECK(allocations_named(own, "scratch for scales") == 0);
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line(line));
  const UnitLayout layout = lay_out_units(job.graph, job.job);
  const Unit& unit = *std::ranges::find_if(layout.units, [](const Unit& u) { return u.scales > 0; });
  const auto scaled = static_cast<double>(unit.scaled_elements),
             others = static_cast<double>(unit.trainable_elements - unit.scaled_elements);
  constexpr auto kCard = DeviceKind::cuda;
  constexpr auto kOwn = KernelSource::vramfit;
  CHECK(work_of_scaled_reading(unit, kCard, kOwn).bytes == scaled * (2 + 4) + others * 8);
  CHECK(work_of_scaled_reading(unit, kCard, kOwn).launches == unit.scales + 1);
  CHECK(work_of_scaled_reading(unit, kCard, KernelSource::libtorch).bytes == scaled * (2 + 3 * 4) + others * 8);
  CHECK(work_of_fp8_reading(unit, kCard, kOwn).bytes == scaled * (1 + 4) + others * 8);
  CHECK(work_of_scaled_rounding(unit, kCard, kOwn).launches == 4 * unit.scales + 1);
  CHECK(work_of_scaled_rounding(unit, kCard, kOwn).bytes <= scaled * (2 * 4 + 2) + others * 8);
}

TEST_CASE("an own kernel moves each number once") {
  constexpr std::int64_t kElements = std::int64_t{1} << 22;
  UnitUpdate update{.elements = kElements,
                    .storage = Dtype::bf16,
                    .gradient = Dtype::bf16,
                    .state = Dtype::f32,
                    .device = DeviceKind::cuda,
                    .parameters = 9,
                    .kernels = KernelSource::vramfit};
  // Gradient and parameter, twice, and both averages, twice; codes of a byte with two scales for 256.
  CHECK(optimizer_named("adamw").work(update).bytes == (2 + 4 + 16) * kElements);
  CHECK(optimizer_named("adamw-8bit").work(update).bytes == (2 + 4 + 4 + 16.0 / 256) * kElements);
  CHECK(optimizer_named("adamw-8bit").work(update).launches == 2);
  CHECK(optimizer_named("adamw-fp8-blocks").work(update).bytes == optimizer_named("adamw-8bit").work(update).bytes);
  CHECK(optimizer_named("adamw-fp8-blocks").work(update).launches == 2);
  CHECK(optimizer_named("adamw-stochastic").work(update).launches == 10);
  // Gradients and averages are read twice: all of a parameter's averages are known before one of them is rounded.
  CHECK(optimizer_named("adamw-fp8").work(update).bytes == (2 * 2 + 4 + 3 * 3) * kElements);
  CHECK(optimizer_named("adamw-fp8").work(update).launches == 19);
  update.kernels = KernelSource::libtorch;
  CHECK(optimizer_named("adamw-8bit").work(update).bytes > 200.0 * kElements);
}

TEST_CASE("the loss with own kernels works on the logits alone, whole or in chunks") {
  for (const char* loss : {"loss=full", "loss=chunked:3", "loss=chunked-forward:2 label_smoothing=0.1 z_loss=0.001"}) {
    for (const char* family : {"llama", "gpt2", "bert"}) {
      CAPTURE(loss);
      CAPTURE(family);
      const std::string line = fmt::format("{} 1x1 cuda:90:132 precision=bf16-pure {}", family, loss);
      const program::Program own = program_of(line + " kernels=vramfit");
      for (const char* temporary : {"log_probs", "block_loss", "label_mask"}) {
        CAPTURE(temporary);
        CHECK(allocations_named(program_of(line), temporary) > 0);
        CHECK(allocations_named(own, temporary) == 0);
      }
      CHECK(allocations_named(own, "row_losses") > 0);
      CHECK(program::fault_of(own).value_or("").empty());
    }
  }
}

TEST_CASE("where own kernels replace dozens of calls") {
  const auto replaces = [](const std::string& settings) {
    return replaces_many_calls(testing::resolved(testing::parse_job_line("llama 1x1 cuda:90:132 " + settings)).job);
  };
  for (const char* settings :
       {"optimizer=adamw-8bit", "optimizer=adamw-fp8", "optimizer=adamw-fp8-blocks",
        "optimizer=adamw-stochastic precision=bf16-pure", "precision=bf16-pure state_dtype=fp32", "method=qlora",
        "method=lora lora_dropout=0.1", "precision=bf16-mixed master_dtype=fp16", "optimizer=adafactor"}) {
    CAPTURE(settings);
    CHECK(replaces(settings));
  }
  for (const char* settings : {"", "precision=bf16-pure", "optimizer=adamw-8bit offload=optimizer"}) {
    CAPTURE(settings);
    CHECK(!replaces(settings));
  }
}

TEST_CASE("own kernels are refused with CPU ranks") {
  const testing::ResolvedJob cpu = testing::resolved(testing::parse_job_line("llama 1x1 cpu:1:0"));
  Job job = cpu.job;
  CHECK_NOTHROW(require_gpus_for_own_kernels(job, cpu.cluster));
  job.kernels = KernelSource::vramfit;
  CHECK_THROWS_WITH(require_gpus_for_own_kernels(job, cpu.cluster),
                    doctest::Contains("--kernels vramfit with CPU ranks"));
}

}  // namespace vramfit
