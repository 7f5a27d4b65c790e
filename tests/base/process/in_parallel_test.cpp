#include "base/process/in_parallel.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace vramfit {

TEST_CASE("every part is done once, also inside another part") {
  std::vector<std::vector<int>> done(40, std::vector<int>(7, 0));
  in_parallel(done.size(), [&](std::size_t outer) {
    in_parallel(done[outer].size(), [&](std::size_t inner) { ++done[outer][inner]; });
  });
  CHECK(done == std::vector(40, std::vector<int>(7, 1)));
  in_parallel(0, [](std::size_t) { FAIL("there is no part"); });
}

TEST_CASE("the first part that throws is heard of, once all are done") {
  std::vector<int> done(30, 0);
  const auto work = [&](std::size_t part) {
    done[part] = 1;
    if (part % 10 == 7) throw std::runtime_error("part " + std::to_string(part));
  };
  CHECK_THROWS_WITH(in_parallel(done.size(), work), "part 7");
  CHECK(done == std::vector<int>(30, 1));
}

}  // namespace vramfit
