// vramfit-train: one rank of a plan.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/process/host_memory.h"
#include "base/process/instrumented.h"
#include "base/process/standard_streams.h"
#include "executor/calibrate/calibrate.h"
#include "executor/place/error_file.h"
#include "executor/run/machine_support.h"
#include "executor/run/run.h"
#include "job/run/run_flags.h"

namespace {

/// Ends a rank at once. At an ordinary end LibTorch forgets its operators one by one, for a quarter of a second. With a
/// GPU that stays: what has been recorded of it (by its stand-ins, by profilers) is written there.
void leave(vramfit::DeviceKind device) {
  if (vramfit::kIsInstrumented || device != vramfit::DeviceKind::cpu) return;
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) try {
  vramfit::take_over_standard_streams();
  vramfit::end_threads_out_of_memory("vramfit-train", vramfit::ExitCode::out_of_memory);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments.front() == "--calibrate") {
    vramfit::calibrate_rank(arguments);
    return 0;
  }
  const vramfit::RunOptions options = vramfit::parse_run_flags(arguments);
  if (options.help) {
    vramfit::write_file("-", vramfit::run_flags_help());
    return 0;
  }
  if (options.support) {
    vramfit::write_file("-", vramfit::machine_support());
    return 0;
  }
  leave(vramfit::run_rank(options));
  return 0;
} catch (const vramfit::ReaderGone&) {
  return vramfit::kReaderGoneCode;
} catch (const vramfit::Error& error) {
  vramfit::report_end(error.what());
  return static_cast<int>(error.code);
} catch (const std::bad_alloc&) {
  vramfit::report_end("out of host memory");
  return static_cast<int>(vramfit::ExitCode::out_of_memory);
} catch (const std::exception& error) {
  vramfit::report_end(error.what());
  return static_cast<int>(vramfit::ExitCode::failed);
}
