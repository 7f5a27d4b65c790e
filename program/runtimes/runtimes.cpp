#include "program/runtimes/runtimes.h"

#include <array>

namespace vramfit {

const RuntimeRow& runtime_row(Runtime runtime) {
  static const std::array kRows{
#define RUNTIME(x, name) x##_row(),
#include "job/stacks/runtimes.def"
#undef RUNTIME
  };
  return kRows.at(static_cast<std::size_t>(runtime));
}

}  // namespace vramfit
