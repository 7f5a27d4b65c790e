#include "cli/rehearse/processes/host_use.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "base/text/units.h"
#include "cli/rehearse/processes/process_tree.h"

namespace vramfit {
namespace {

/// Of "NAME: 123 kB", in bytes; 0 where there is no such line.
std::int64_t kilobytes_of(std::istream& file, const std::string& name) {
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * kKiB.n;
  }
  return 0;
}

/// /proc/PID/status has RssAnon, RssFile and RssShmem in this order. Files' pages are the kernel's to give up.
std::int64_t own_memory(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  const std::int64_t anonymous = kilobytes_of(file, "RssAnon");
  return anonymous + kilobytes_of(file, "RssShmem");
}

/// The first number in a file of a cgroup; nothing for "max", or where there is none.
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

constexpr const char* kGroup = "/sys/fs/cgroup";  // where a container sees its own

}  // namespace

std::vector<Bytes> host_memory_of(const std::vector<pid_t>& roots) {
  const std::map<pid_t, pid_t> parents = parents_of_all();
  std::vector<Bytes> found(roots.size());
  for (const auto& [process, parent] : parents) {
    pid_t above = process;
    for (std::size_t steps = 0; steps < parents.size(); ++steps) {
      const auto root = std::ranges::find(roots, above);
      if (root != roots.end()) {
        found[static_cast<std::size_t>(root - roots.begin())] += Bytes{own_memory(process)};
        break;
      }
      const auto next = parents.find(above);
      if (next == parents.end()) break;
      above = next->second;
    }
  }
  return found;
}

Bytes available_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::int64_t available = kilobytes_of(file, "MemAvailable");
  const auto most = number_in(fmt::format("{}/memory.max", kGroup));
  const auto used = number_in(fmt::format("{}/memory.current", kGroup));
  if (most && used) {
    std::ifstream statistics(fmt::format("{}/memory.stat", kGroup));
    std::int64_t files = 0;  // that can be given up
    std::string name;
    for (std::int64_t bytes = 0; statistics >> name >> bytes;) {
      if (name == "inactive_file") files = bytes;
    }
    available = std::min(available, *most - *used + files);
  }
  return {std::max<std::int64_t>(0, available)};
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  std::ifstream file(fmt::format("{}/cpu.max", kGroup));  // "QUOTA PERIOD" in microseconds, or "max PERIOD"
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) count = std::min(count, static_cast<int>(std::ceil(quota / period)));
  return std::max(1, count);
}

}  // namespace vramfit
