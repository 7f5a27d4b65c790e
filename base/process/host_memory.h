// Running out of host memory where no exception can pass.
#pragma once

#include "base/error.h"

namespace vramfit {

/// An allocation that fails in a thread, or in a destructor, reaches no main(): it ends in std::terminate. From here on
/// that says "PROGRAM: out of host memory" too, and exits with `code`. `program` outlives the process's threads.
void end_threads_out_of_memory(const char* program, ExitCode code);

}  // namespace vramfit
