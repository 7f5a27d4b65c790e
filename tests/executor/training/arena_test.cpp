// Training in one block of memory, with the offsets that were computed for it, gives what it gives with an allocator.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/checkpoint/files.h"
#include "executor/checkpoint/final_folders.h"
#include "executor/meter/meter.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/bytes.h"
#include "tests/executor/training/small_training_torch.h"
#include "tests/support/temporary_directory.h"

namespace vramfit::testing {

namespace {

constexpr int kArenaSteps = 3;
constexpr int kSpoilt = 0xFF;  // NaN in every float type

/// Full of NaN at first, and again wherever something was freed.
std::shared_ptr<Arena> spoilt_arena(const program::Program& program) {
  const arena::Script script = arena::script_of(program, arena::kCpuGranule);
  const auto bytes = static_cast<std::size_t>(round_up(script.size.n, 64));
  void* base = std::aligned_alloc(64, bytes);
  REQUIRE(base != nullptr);
  std::memset(base, kSpoilt, bytes);
  return Arenas::add(
      script,
      {.base = base,
       .release = [](void* held) { std::free(held); },
       .freed = [](void* from, Bytes range) { std::memset(from, kSpoilt, static_cast<std::size_t>(range.n)); }});
}

struct ArenaOutcome {
  std::vector<StepResult> steps;       // of rank 0
  std::vector<MeasuredArena> reports;  // of all ranks
};

ArenaOutcome outcome_of(const std::string& model, const Job& job, bool in_arena) {
  SmallTraining training(model, job, options_of(kArenaSteps));
  ArenaOutcome outcome;
  std::mutex mutex;
  std::vector<std::shared_ptr<Arena>> arenas;
  if (in_arena) {
    training.opens_arena = [&](const program::Program& program) {
      std::shared_ptr<Arena> arena = spoilt_arena(program);
      const std::scoped_lock lock(mutex);
      arenas.push_back(arena);
      return arena;
    };
  }
  training.on_ranks([&](ProcessGroups& groups) {
    training.with_trainer(groups, [&](Trainer& trainer) {
      for (int step = 1; step <= kArenaSteps; ++step) {
        const StepResult result = trainer.step(step);
        if (groups.world().rank() == 0) outcome.steps.push_back(result);
      }
    });
  });
  for (const auto& arena : arenas) outcome.reports.push_back(arena->report());
  return outcome;
}

/// Losses, norms and scales equal to the bit, and all memory from the block.
void check_in_arena(const std::string& model, const Job& job) {
  const ArenaOutcome usual = outcome_of(model, job, false), packed = outcome_of(model, job, true);
  REQUIRE(packed.steps.size() == usual.steps.size());
  for (std::size_t i = 0; i < usual.steps.size(); ++i) {
    CHECK(packed.steps[i].loss == usual.steps[i].loss);
    CHECK(packed.steps[i].gradient_norm == usual.steps[i].gradient_norm);
    CHECK(packed.steps[i].loss_scale == usual.steps[i].loss_scale);
  }
  CHECK(packed.reports.size() == static_cast<std::size_t>(data_ranks(job)));
  for (const MeasuredArena& report : packed.reports) {
    CHECK(report.requests > 100);
    CHECK_MESSAGE(report.off_script == 0, report.first_off_script);
  }
}

Job job_of(const std::string& sharding, int ranks, const std::string& precision) {
  Job job = small_job(sharding, ranks);
  job.sequence = 16;
  job.precision = precision_named(precision);
  return job;
}

}  // namespace

TEST_CASE(
    "losses in an arena are those of the allocator to the bit, for every family, with no request off the script") {
  Meter::instance().install_cpu(Bytes{0});
  for (const std::string model :
       {"bert", "gemma", "gemma2", "gemma3_text", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3"}) {
    CAPTURE(model);
    check_in_arena(model, job_of("full-shard", 1, "fp32"));
    Job job = job_of("full-shard", 2, "bf16-mixed");
    job.checkpointing = FullCheckpointing{};
    check_in_arena(model, job);
  }
}

TEST_CASE("likewise for each sharding, precision, accumulation, loss, reshard and mask") {
  Meter::instance().install_cpu(Bytes{0});
  std::vector<Job> jobs;
  for (const std::string sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
    jobs.push_back(job_of(sharding, 2, "bf16-pure"));
    jobs.push_back(job_of(sharding, 4, "fp16-mixed"));
    jobs.back().accumulation = 4;
    jobs.back().global_batch = 16;
    jobs.back().accumulate = Accumulate::unsharded;
  }
  jobs.push_back(job_of("hybrid-shard", 4, "bf16-mixed"));
  jobs.back().mesh = {.replicate = 2, .shard = 2};
  jobs.push_back(job_of("full-shard", 4, "fp32"));
  jobs.back().reshard = ReshardGroups{2};
  jobs.push_back(job_of("full-shard", 2, "bf16-mixed"));
  jobs.back().loss = ChunkedLoss{4};
  jobs.push_back(job_of("full-shard", 1, "bf16-mixed"));
  jobs.back().gradient_mask = RandomGradientMask{0.5};
  for (const Job& job : jobs) {
    CAPTURE(job.sharding);
    CAPTURE(data_ranks(job));
    check_in_arena("llama", job);
  }
}

TEST_CASE("events in an arena, saving included, are those that the program says") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  SmallTraining training("gpt2", job_of("full-shard", 1, "fp32"), options_of(1));
  training.saves = true;
  training.opens_arena = spoilt_arena;
  const TemporaryDirectory directory;
  const auto files = real_file_calls();
  training.on_ranks([&](ProcessGroups& groups) {
    const program::Program program = training.program_of(groups);
    meter.reset();
    meter.record_events(true);
    Ledger measured;
    training.with_trainer(
        groups,
        [&](Trainer& trainer) {
          trainer.step(1);
          Snapshot snapshot;
          trainer.snapshot(snapshot);
          trainer.save_full(
              *files, {.model = directory.path().string(), .config_json = "{}", .adapters = {}, .adapter_config = {}});
          measured = meter.take_ledger();
        },
        &program);
    meter.record_events(false);
    const LedgerDifference difference =
        compare_ledgers(ledger_of(program, {.steps = 1, .abbreviate = false}), measured);
    CHECK_MESSAGE(difference.equal, difference.first);
    CHECK(difference.compared > 100);
  });
}

TEST_CASE("a program that asks for other bytes, or frees late, gets them from the allocator, and it is counted") {
  arena::Script script;
  script.requests = {{Bytes{100}, Bytes{0}}, {Bytes{64}, Bytes{128}}, {Bytes{200}, Bytes{0}}};
  script.sections = {0};
  script.granule = Bytes{64};
  script.size = Bytes{256};
  std::vector<std::byte> memory(256);
  Arena arena(script, {.base = memory.data(), .release = [](void*) {}});
  arena.begin_section(0);
  arena.begin_instruction(2, 1);
  void* const first = arena.take(Bytes{100});
  CHECK(first == memory.data());
  CHECK(arena.take(Bytes{65}) == nullptr);  // the script has 64
  void* const second = arena.take(Bytes{64});
  CHECK(second == memory.data() + 128);
  CHECK(arena.take(Bytes{64}) == nullptr);  // it has no third
  arena.begin_instruction(1, 1);
  CHECK(arena.take(Bytes{200}) == nullptr);  // the first is still there
  const MeasuredArena report = arena.report();
  CHECK(report.requests == 2);
  CHECK(report.off_script == 3);
  CHECK(report.first_off_script == "65 bytes, where the script has 64");
  CHECK(arena.take_peak() == Bytes{192});
  CHECK(arena.give_back(first));
  CHECK_FALSE(arena.give_back(first));
  CHECK(arena.give_back(second));
  arena.begin_section(0);
  arena.begin_instruction(2, 2);  // its kernel runs twice
  for (int time = 0; time < 2; ++time) {
    CHECK(arena.take(Bytes{100}) == first);
    CHECK(arena.take(Bytes{64}) == second);
    arena.give_back(first);
    arena.give_back(second);
  }
  CHECK(arena.report().off_script == 3);
  CHECK(arena.is_empty());
}

}  // namespace vramfit::testing
