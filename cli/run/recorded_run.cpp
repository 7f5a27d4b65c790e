#include "cli/run/recorded_run.h"

#include <filesystem>
#include <system_error>

#include "cli/files.h"

namespace vramfit {

RunEnd launch_recorded(LaunchOptions launch, const std::string& folder) {
  const std::string record = folder + "/run.json";
  launch.arguments.insert(launch.arguments.end(), {"-o", record});
  const int code = launch_ranks(launch);
  std::error_code ignored;
  return {.exit_code = code, .record = std::filesystem::is_regular_file(record, ignored) ? read_file(record) : ""};
}

}  // namespace vramfit
