// --allocator gradients-first: the gradients of a layer are allocated before the layer is computed again.
#include <algorithm>
#include <string>
#include <vector>

#include "estimator/rank_estimate.h"
#include "program/readers/bytes.h"
#include "program/readers/check.h"
#include "program/readers/peaks.h"
#include "program/readers/program_text.h"
#include "program/schedules/schedule.h"
#include "tests/program/job_programs.h"

namespace vramfit {
namespace {

using testing::job_of;
using testing::program_of;

constexpr const char* kOne = "llama/3 1x1 cuda:90:132 precision=fp32 ";

program::Program sound_program_of(const std::string& line) {
  program::Program program = program_of(job_of(line));
  CHECK(program::fault_of(program).value_or("") == "");
  return program;
}

/// In which instruction of the schedule each gradient shard is allocated, in the program's order.
std::vector<std::string> when_made(const program::Program& program) {
  std::vector<std::string> made;
  std::string current;
  const auto note = [&](int buffer) {
    const int label = program.main.buffers.at(static_cast<std::size_t>(buffer)).label;
    const std::string text = label < 0 ? "" : program.labels.at(static_cast<std::size_t>(label));
    if (text.ends_with(": gradient shard")) made.push_back(text.substr(0, text.find(':')) + " in " + current);
  };
  for (const program::Instruction& instruction : program.main.instructions) {
    if (const auto* mark = std::get_if<program::Mark>(&instruction); mark != nullptr && mark->is_step) {
      current = instruction_name(mark->what);
    }
    if (const auto* allocate = std::get_if<program::Allocate>(&instruction)) note(allocate->buffer);
    const auto* call = std::get_if<program::Call>(&instruction);
    if (call == nullptr) continue;
    const program::Block& block = program.blocks.at(static_cast<std::size_t>(call->block));
    for (const program::Instruction& inner : block.code.instructions) {
      const auto* allocate = std::get_if<program::Allocate>(&inner);
      if (allocate == nullptr || allocate->buffer >= block.slots) continue;
      note(program.main.bindings.at(call->bindings.first + static_cast<std::size_t>(allocate->buffer)));
    }
  }
  return made;
}

bool is_as_usual(const std::string& line) {
  return program::program_text(sound_program_of(line + " allocator=gradients-first")) ==
         program::program_text(sound_program_of(line));
}

/// What the caching allocator reserves at most.
Bytes reserved(const std::string& line) {
  const testing::ResolvedJob job = job_of(line);
  CardMemory card({AddressOrder::ascending, 0});
  return fold_on(ledger_of(program_of(job), {}), allocator_settings(job.job.allocator), card).peak_reserved;
}

}  // namespace

TEST_CASE("gradients of layers that are recomputed are made before that, all others by who writes them first") {
  using Made = std::vector<std::string>;
  const std::string full = std::string(kOne) + "checkpointing=full";
  CHECK(when_made(sound_program_of(full)) == Made{"head in backward", "layers.2 in backward", "layers.1 in backward",
                                                  "layers.0 in backward", "embed in backward"});
  CHECK(when_made(sound_program_of(full + " allocator=gradients-first")) ==
        Made{"head in backward", "layers.2 in recompute", "layers.1 in recompute", "layers.0 in recompute",
             "embed in backward"});
  const Made second =
      when_made(sound_program_of(std::string(kOne) + "checkpointing=every:2 allocator=gradients-first"));
  CHECK(std::ranges::count(second, "layers.2 in recompute") == 1);
  CHECK(std::ranges::count(second, "layers.1 in backward") == 1);
}

TEST_CASE("later micro-batches find them, and a step leaves nothing else than it does otherwise") {
  const std::string job = std::string(kOne) + "checkpointing=full grad_accum=4";
  const auto usual = when_made(sound_program_of(job)),
             first = when_made(sound_program_of(job + " allocator=gradients-first"));
  CHECK(usual.size() == first.size());
  CHECK(std::ranges::count(first, "layers.1 in recompute") == 1);
  CHECK(std::ranges::count(first, "layers.1 in backward") == 0);
}

TEST_CASE(
    "nothing changes where gradients aren't written where they stay, are of several units, or nothing is recomputed") {
  const std::string full = std::string(kOne) + "checkpointing=full";
  CHECK_FALSE(is_as_usual(full));
  CHECK(is_as_usual(kOne));
  CHECK(is_as_usual("llama/3 1x1 cuda:90:132 precision=bf16-mixed checkpointing=full"));
  CHECK(is_as_usual("llama/3 1x2 cuda:90:132 precision=fp32 checkpointing=full"));
  CHECK_FALSE(is_as_usual("llama/3 1x2 cuda:90:132 precision=fp32 checkpointing=full sharding=no-shard"));
  CHECK(is_as_usual(full + " wrap=pattern:*mlp*"));
  CHECK(is_as_usual(full + " gradient_dtype=fp8"));
}

TEST_CASE(
    "of Llama-3.1-8B on one card nothing more is allocated, and 422 MiB less reserved: a layer's gradients and holes") {
  const std::string job = "llama-3.1-8b 1x1 cuda:90:132 precision=bf16-pure checkpointing=full loss=full seq_len=4096";
  const auto peaks = [](const std::string& line) { return folded_peaks(program_of(job_of(line)), Bytes{512}).rounded; };
  const std::string first = job + " allocator=gradients-first";
  CHECK(peaks(first) == peaks(job));
  CHECK(reserved(job) - reserved(first) > 400 * kMiB);
}

}  // namespace vramfit
