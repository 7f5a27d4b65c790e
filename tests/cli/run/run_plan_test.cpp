#include "cli/run/run_plan.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "cli/files.h"
#include "job/fields/job_fields.h"
#include "job/run/run_flags.h"
#include "program/files/plan_reader.h"
#include "tests/support/paths.h"

namespace vramfit {
namespace {

/// Whether the plan that `run --clip CLIP` makes counts gradient clipping.
bool plan_clips(const std::string& clip) {
  JobFlags flags;
  flags.model = testing::source_dir() + "/tests/models/llama.json";
  flags.gpus = "1xcpu-4GiB";
  flags.values.resize(job_fields().size());
  const std::vector<std::string> arguments{"--plan", "plan.json", "--clip", clip};
  const TemporaryPlan plan(flags, parse_run_flags(arguments).train.clip > 0);
  return plan_from_json(read_file(plan.path()), plan.path()).clip;
}

}  // namespace

TEST_CASE("a plan leaves clipping out for every way to write zero, and for no other number") {
  for (const char* zero : {"0", "0.0", "0e5", "0E-3", ".0"}) CHECK_FALSE_MESSAGE(plan_clips(zero), zero);
  for (const char* number : {"1", "1e-5", "0.5", "5e0"}) CHECK_MESSAGE(plan_clips(number), number);
  for (const char* wrong : {"e", "0x", "-1", "1..", "nan", "0e"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(plan_clips(wrong), doctest::Contains("--clip: "), InputError);
  }
}

}  // namespace vramfit
