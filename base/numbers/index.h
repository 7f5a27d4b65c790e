#pragma once

#include <cstddef>

namespace vramfit {

/// A place in a vector, of an index that is known not to be negative: `units[at(i)]`.
constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace vramfit
