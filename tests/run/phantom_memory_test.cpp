// Cards too small for the job: running out is exit 6 with a record, whatever it is that finds no room.
#include <doctest/doctest.h>

#include "estimator/estimate.h"
#include "model_specs/config.h"
#include "tests/run/phantom_cover.h"
#include "tests/run/vramfit_run.h"

namespace vramfit::testing {

namespace {

constexpr double kContextMib = 525, kCommunicatorMib = 1060;  // of an H100 (configs/gpus.json)

/// H100s with `mib` of memory.
PhantomJob small_cards(int ranks, double mib, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--seq-len", "32"});
  return {{"llama", ranks, std::move(flags)},
          std::to_string(ranks) + "xH100-80GB@" + std::to_string(mib) + "MiB",
          0,
          "ascending"};
}

Verdict predicted(const RunRecord& record) {
  const ModelSpec spec = parse_config(read_text(model_path("llama")), "llama");
  return estimate(spec, record.job, record.cluster, {.suggestions = false}).verdict;
}

void check_ran_out(const PhantomJob& job, bool all_ranks) {
  CAPTURE(job.name());
  const FinishedRun run = run_on_phantom(job, all_ranks);
  CHECK_MESSAGE(run.exit_code == 6, run.errors);
  const RunRecord record = run.record();
  CHECK(record.out_of_memory);
  CHECK_MESSAGE(record.message.find("out of memory") != std::string::npos, record.message);
  REQUIRE_FALSE(record.ranks.front().memory.phases.empty());
  CHECK(record.ranks.front().memory.phases.back().phase == Phase::load);
  CHECK(predicted(record) == Verdict::does_not_fit);
}

}  // namespace

TEST_CASE("a card without room for a communicator is out of memory: exit 6 and a record") {
  const std::vector<std::string> hybrid{"--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2"};
  check_ran_out(small_cards(8, kContextMib + kCommunicatorMib - 1, {}), false);
  check_ran_out(small_cards(4, kContextMib + 2 * kCommunicatorMib - 1, hybrid), false);
  check_ran_out(small_cards(2, kContextMib + kCommunicatorMib - 1, {}), true);
}

TEST_CASE("what is allocated finds what communicators leave") {
  check_ran_out(small_cards(2, kContextMib + kCommunicatorMib + 1, {}), false);
  const FinishedRun run = run_on_phantom(small_cards(2, kContextMib + kCommunicatorMib + 200, {}));
  CHECK_MESSAGE(run.exit_code == 0, run.errors);
}

}  // namespace vramfit::testing
