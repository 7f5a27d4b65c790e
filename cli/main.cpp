#include <cstdio>
#include <exception>

#include "cli/command_line.h"
#include "model_specs/error.h"
#include "model_specs/host_memory.h"

int main(int argc, char** argv) try {
  vramfit::end_threads_out_of_memory("vramfit", vramfit::ExitCode::failed);
  return vramfit::run_command_line(argc, argv);
} catch (const vramfit::Error& error) {
  std::fprintf(stderr, "vramfit: %s\n", error.what());
  return static_cast<int>(error.code);
} catch (const std::bad_alloc&) {
  std::fprintf(stderr, "vramfit: out of host memory\n");
  return static_cast<int>(vramfit::ExitCode::failed);
} catch (const std::exception& error) {
  std::fprintf(stderr, "vramfit: internal error: %s; please report it with the command line\n", error.what());
  return static_cast<int>(vramfit::ExitCode::failed);
}
