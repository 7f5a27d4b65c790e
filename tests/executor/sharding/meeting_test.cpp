#include "executor/sharding/meeting.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "tests/support/temporary_directory.h"

namespace vramfit {

TEST_CASE("what c10d reads from the environment is set by the time that a meeting's threads run") {
  const testing::TemporaryDirectory directory;
  unsetenv("TORCH_FR_BUFFER_SIZE");
  RankPlace place;
  place.world = 2;
  place.store_file = (directory.path() / "store").string();
  const auto meeting = meet(place, std::chrono::seconds(60));
  const char* recorder = std::getenv("TORCH_FR_BUFFER_SIZE");  // NOLINT(concurrency-mt-unsafe): nothing sets it now
  REQUIRE(recorder != nullptr);
  CHECK(std::string(recorder) == "0");
}

}  // namespace vramfit
