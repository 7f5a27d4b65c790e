#include <cstdio>
#include <exception>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/process/host_memory.h"
#include "base/process/keep_memory.h"
#include "base/process/standard_streams.h"
#include "cli/command_line.h"
#include "cli/rehearse/launchers/launcher_shims.h"

int main(int argc, char** argv) try {
  vramfit::take_over_standard_streams();
  vramfit::keep_freed_memory();
  vramfit::end_threads_out_of_memory("vramfit", vramfit::ExitCode::failed);
  if (vramfit::is_started_as_launcher(argv[0])) vramfit::become_rank_of_launcher(argc, argv);
  const int code = vramfit::run_command_line(argc, argv);
  vramfit::finish_stdout();
  return code;
} catch (const vramfit::ReaderGone&) {
  return vramfit::kReaderGoneCode;
} catch (const vramfit::Error& error) {
  vramfit::complain("vramfit", error.what());
  return static_cast<int>(error.code);
} catch (const std::bad_alloc&) {
  std::fprintf(stderr, "vramfit: out of host memory\n");
  return static_cast<int>(vramfit::ExitCode::failed);
} catch (const std::exception& error) {
  vramfit::complain("vramfit",
                    std::string("internal error: ") + error.what() + "; please report it with the command line");
  return static_cast<int>(vramfit::ExitCode::failed);
}
