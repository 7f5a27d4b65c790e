// The gradients' norm takes memory of its own only where a unit is large, which the covers' models rarely are.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "program/ledger/ledger_diff.h"
#include "tests/run/phantom_cover.h"
#include "tests/run/vramfit_run.h"

namespace vramfit::testing {

TEST_CASE("scratch for the norm of a large unit is allocated, and predicted, exactly where a step takes the norm") {
  struct Case {
    std::string precision, clip;
    bool takes_norm;
  };
  // fp16 gradients are examined for overflow by their norm, clipped or not.
  for (const Case& at : {Case{"fp32", "1", true}, Case{"fp32", "0", false}, Case{"fp16-mixed", "0", true}}) {
    CAPTURE(at.precision);
    CAPTURE(at.clip);
    const FinishedRun run = run_on_phantom(
        {{"llama", 1, {"--wrap", "none", "--precision", at.precision, "--clip", at.clip, "--seq-len", "32"}},
         "1xH100-80GB",
         0,
         "ascending"});
    REQUIRE_MESSAGE(run.exit_code == 0, run.errors);
    const Ledger predicted = count_as_run(run, 0);
    CHECK((std::ranges::find(predicted.labels, "clip: partials") != predicted.labels.end()) == at.takes_norm);
    const LedgerDifference difference = compare_ledgers(predicted, run.events_of(0));
    CHECK_MESSAGE(difference.equal, difference.first);
  }
}

}  // namespace vramfit::testing
