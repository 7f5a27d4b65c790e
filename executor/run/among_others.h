// A rank's end, told to the other ranks.
#pragma once

#include <functional>

#include "executor/place/failure_watch.h"

namespace vramfit {

/// What ends `run` is told to the others; where another one's end came first, that is what is thrown on. Throws Error.
void run_among_others(FailureWatch& watch, const std::function<void()>& run);

}  // namespace vramfit
