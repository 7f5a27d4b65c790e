#include "base/process/host_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

namespace vramfit {

namespace {

// A handler takes no arguments.
const char* name_of_program = "vramfit";
ExitCode code_at_end = ExitCode::failed;

void say(const char* text) { [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text)); }

/// Allocates nothing. What isn't about memory aborts, as by default.
[[noreturn]] void end() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    say(name_of_program);
    say(": out of host memory\n");
    _exit(static_cast<int>(code_at_end));
  } catch (const std::exception& error) {
    say(name_of_program);
    say(": internal error: ");
    say(error.what());
    say("\n");
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void end_threads_out_of_memory(const char* program, ExitCode code) {
  name_of_program = program;
  code_at_end = code;
  std::set_terminate(end);
}

}  // namespace vramfit
