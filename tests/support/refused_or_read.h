// For fuzz tests: hostile text is read, or refused with one of our errors, in one line, and quickly.
#pragma once

#include <cstddef>
#include <ctime>
#include <exception>
#include <string>

#include <doctest/doctest.h>

#include "base/error.h"

namespace vramfit::testing {

/// How often which of the two happened.
struct Outcome {
  int accepted = 0;
  int refused = 0;
};

/// Calls `read` and counts what came of it; anything else is a failure of the test, and so is an error of `most_text`
/// characters.
template <typename Read>
void try_to(const Read& read, Outcome& outcome, std::size_t most_text = 2000) {
  const std::clock_t begun = std::clock();
  try {
    read();
    ++outcome.accepted;
  } catch (const Error& error) {
    ++outcome.refused;
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    CHECK(std::string(error.what()).size() < most_text);
  } catch (const std::exception& error) {
    FAIL_CHECK("not one of our errors: " << error.what());
  }
  CHECK(std::clock() - begun < 10 * CLOCKS_PER_SEC);  // of the processor
}

}  // namespace vramfit::testing
