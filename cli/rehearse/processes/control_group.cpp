#include "cli/rehearse/processes/control_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "vramfit-rehearsal-";

/// Where version 2 is mounted whole; "" when it isn't. Lines of mountinfo: "ID PARENT DEVICE ROOT PLACE OPTIONS ... -
/// TYPE ...".
std::string mounted_at() {
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.find(" - cgroup2 ") == std::string::npos) continue;
    std::size_t begin = 0;
    for (int field = 0; field < 3; ++field) begin = line.find(' ', begin) + 1;
    if (line.compare(begin, 2, "/ ") != 0) continue;
    begin += 2;
    return line.substr(begin, line.find(' ', begin) - begin);
  }
  return "";
}

/// The directory of this process's own group; "" when it can't be seen from here.
std::string own_group() {
  const std::string root = mounted_at();
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; !root.empty() && std::getline(file, line);) {
    constexpr std::string_view kVersion2 = "0::";
    if (!line.starts_with(kVersion2) || line.find("..") != std::string::npos) continue;
    return root + line.substr(kVersion2.size());
  }
  return "";
}

/// Groups that rehearsals which were killed left behind. One with processes in it can't be removed.
void sweep(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    pid_t maker = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), maker);
    if (maker > 0 && kill(maker, 0) != 0 && errno == ESRCH) ::rmdir(entry->path().c_str());
  }
}

}  // namespace

std::optional<ControlGroup> ControlGroup::make() {
  const std::string parent = own_group();
  if (parent.empty()) return std::nullopt;
  sweep(parent);
  const std::string path = fmt::format("{}/{}{}", parent, kPrefix, getpid());
  if (::mkdir(path.c_str(), 0755) != 0) return std::nullopt;
  const int join = ::open((path + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
  if (join >= 0 && ::access((path + "/cgroup.kill").c_str(), W_OK) == 0) return ControlGroup(path, join);
  if (join >= 0) ::close(join);
  ::rmdir(path.c_str());
  return std::nullopt;
}

ControlGroup::ControlGroup(ControlGroup&& other) noexcept
    : path_(std::exchange(other.path_, "")), join_(std::exchange(other.join_, -1)) {}

ControlGroup::~ControlGroup() {
  if (join_ >= 0) ::close(join_);
  if (!path_.empty()) ::rmdir(path_.c_str());
}

void ControlGroup::kill_all() const {
  const int file = ::open((path_ + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, "1", 1);
  ::close(file);
}

}  // namespace vramfit
