#include "executor/observe/run_observers.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "job/run/run_flags.h"

namespace vramfit {

TEST_CASE("files of several ranks keep their ending, and one rank's keeps its name") {
  CHECK(path_of_rank("out/trace.json", 0, 1) == "out/trace.json");
  CHECK(path_of_rank("out/trace.json", 3, 4) == "out/trace.rank3.json");
  CHECK(path_of_rank("memory.pickle", 12, 16) == "memory.rank12.pickle");
  CHECK(path_of_rank("memory", 1, 2) == "memory.rank1");
  CHECK(path_of_rank("a.b/memory", 1, 2) == "a.b/memory.rank1");
}

TEST_CASE("what can't hold several files gets rank 0's, and the other ranks write none") {
  for (const char* path : {"-", "/dev/stdout", "/dev/fd/3", "/dev/null"}) {
    CAPTURE(path);
    CHECK(path_of_rank(path, 0, 2) == path);
    CHECK(path_of_rank(path, 1, 2).empty());
    CHECK(path_of_rank(path, 0, 1) == path);
  }
}

TEST_CASE("steps to trace are a range or a step, in order") {
  CHECK(step_range("2-3").first == 2);
  CHECK(step_range("2-3").last == 3);
  CHECK(step_range("7").holds(7));
  CHECK_FALSE(step_range("7").holds(8));
  for (const char* text : {"", "-", "3-2", "0-2", "2-", "-2", "1-2-3", "a-b", "1e3", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(step_range(text), InputError);
  }
}

}  // namespace vramfit
