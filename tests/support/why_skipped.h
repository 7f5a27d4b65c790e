// Of a program whose tests need what isn't everywhere.
#pragma once

#include <string>

namespace vramfit::testing {

/// Why its tests can't run here: it prints that, and ends with 77, which ctest takes for skipped. Empty: they can, as
/// they can in each program that doesn't define it (tests/main.cpp).
std::string why_skipped();

}  // namespace vramfit::testing
