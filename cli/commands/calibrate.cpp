#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/executor_program.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/format/calibration_text.h"
#include "cli/format/ticker.h"
#include "cli/launch/launch.h"
#include "cli/private_folder.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

constexpr double kUsualSeconds = 120, kMostSeconds = 86400;

struct CalibrateFlags {
  std::string gpus, device = "auto", seconds, threads, output;
  bool json = false;
};

void check_device(const std::string& device, const Cluster& cluster) {
  if (device == "phantom") {
    throw InputError("--device phantom: nothing takes time on phantom GPUs; calibrate on the GPUs themselves");
  }
  if (device != "auto" && device != "cpu" && device != "cuda") {
    try {
      unknown_value(device, {"auto", "cpu", "cuda"});
    } catch (const InputError& error) {
      throw InputError(fmt::format("--device: {}", error.what()));
    }
  }
  if (device == "auto" || (device == "cpu") == cluster.is_cpu()) return;
  throw InputError(fmt::format("--device {}: --gpus {} asks for {}; figures of one say nothing of the other", device,
                               printable(cluster.text), cluster.is_cpu() ? "CPU ranks" : "GPUs"));
}

Cluster read_cluster(const CalibrateFlags& flags) {
  if (flags.gpus.empty()) {
    throw InputError("--gpus: missing; name what this machine has, such as 8xH100-80GB, or 2xcpu-4GiB for CPU ranks");
  }
  const Cluster cluster = parse_cluster(flags.gpus);
  check_device(flags.device, cluster);
  if (cluster.nodes > 1) {
    throw InputError(
        fmt::format("--gpus {}: one machine is measured; give what one node has", printable(cluster.text)));
  }
  return cluster;
}

double read_seconds(const std::string& text) {
  try {
    return text.empty() ? kUsualSeconds : real_number(text, 0.1, kMostSeconds);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--seconds: {}", error.what()));
  }
}

int read_threads(const std::string& text) {
  try {
    return text.empty() ? 0 : static_cast<int>(whole_number(text, 1, 4096));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--threads: {}", error.what()));
  }
}

/// Runs vramfit-train on every rank; nothing if they failed, with the exit code in `code`.
std::string measurements(const CalibrateFlags& flags, const Cluster& cluster, int& code) {
  const double seconds = read_seconds(flags.seconds);
  const int threads = read_threads(flags.threads);
  const std::string program = find_executor();
  if (program.empty()) {
    throw FaultError("vramfit-train is missing, so nothing can be measured: " + how_to_get_executor());
  }
  const PrivateFolder folder("calibrate");
  const std::string file = folder.path() + "/measurements.json";
  LaunchOptions launch{.program = program,
                       .arguments = {"--calibrate", file, "--gpus", flags.gpus, "--seconds", fmt::to_string(seconds)},
                       .ranks = static_cast<int>(cluster.cards_per_node),
                       .threads = threads};
  if (threads > 0) launch.arguments.insert(launch.arguments.end(), {"--threads", fmt::to_string(threads)});
  const Ticker ticker(fmt::format("vramfit: measuring for about {:.0f} s", seconds));
  code = launch_ranks(launch);
  return code == 0 ? read_file(file) : "";
}

int run_calibrate(const CalibrateFlags& flags) {
  const Cluster cluster = read_cluster(flags);
  check_output("-o", flags.output);
  sweep_private_folders();
  int code = 0;
  const std::string text = measurements(flags, cluster, code);
  if (code != 0) return code;
  const Measurements measured = measurements_from_json(text, "measurements.json");
  const Calibration calibration = calibration_of(cluster, measured);
  const std::string json = calibration_to_json(calibration, cluster, measured);
  if (!flags.output.empty()) write_file(flags.output, json);
  if (is_stdout(flags.output)) return static_cast<int>(ExitCode::done);
  write_file("-",
             flags.json ? json : calibration_text(calibration, cluster, measured, flags.output, detect_terminal()));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_calibrate(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<CalibrateFlags>();
  command
      .add_option("--gpus", flags->gpus, "This machine's GPUs, as in plans: 8xH100-80GB; or its CPU ranks: 2xcpu-4GiB")
      ->type_name("CLUSTER")
      ->group(kCommonFlags);
  command
      .add_option("--device", flags->device, "What to measure. Default: what --gpus says; phantom GPUs have no speed")
      ->type_name("auto|cpu|cuda")
      ->group(kCommonFlags);
  command.add_option("--seconds", flags->seconds, "About how long to measure. Default: 120")
      ->type_name("SECONDS")
      ->group(kCommonFlags);
  command.add_option("--threads", flags->threads, "CPU threads per rank. Default: cores / ranks on this machine")
      ->type_name("N")
      ->group(kCommonFlags);
  command.add_option("-o,--output", flags->output, "Write the figures, for --calibration; - is stdout")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_flag("--json", flags->json, "Print the figures as JSON (configs/schemas/calibration.schema.json)")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = run_calibrate(*flags); });
}

}  // namespace vramfit
