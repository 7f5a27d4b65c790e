// Jobs with own CUDA kernels where there are none: refused by name.
#include <doctest/doctest.h>

#include "tests/run/phantom_cover.h"

namespace vramfit::testing {

TEST_CASE("a run that asks for own kernels is refused on CPU ranks") {
  const FinishedRun cpu = run_vramfit({"llama", 1, {"--kernels", "vramfit", "--seq-len", "16"}}, {});
  CHECK(cpu.exit_code != 0);
  CHECK(cpu.errors.find("--kernels vramfit with CPU ranks") != std::string::npos);
}

TEST_CASE("a run that asks for own kernels is refused where they weren't built" * doctest::skip(has_own_kernels())) {
  const PhantomJob job{{"llama", 1, {"--kernels", "vramfit", "--optimizer", "adamw-8bit", "--seq-len", "33"}},
                       "1xH100-80GB",
                       0,
                       "ascending"};
  const FinishedRun phantom = run_on_phantom(job);
  CHECK(phantom.exit_code != 0);
  CHECK(phantom.errors.find("scripts/setup --cuda") != std::string::npos);
}

}  // namespace vramfit::testing
