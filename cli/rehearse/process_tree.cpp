#include "cli/rehearse/process_tree.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace vramfit {
namespace {

struct Entry {
  pid_t parent = 0;
  bool ended = false;
};

/// /proc/PID/stat: "PID (NAME) STATE PPID ..."; the name may hold anything, so what counts begins at its last bracket.
bool read_entry(const std::filesystem::path& folder, Entry& entry) {
  std::ifstream file(folder / "stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string::npos) return false;
  std::istringstream rest(text.substr(bracket + 1));
  char state = 0;
  if (!(rest >> state >> entry.parent)) return false;
  entry.ended = state == 'Z' || state == 'X';
  return true;
}

std::map<pid_t, Entry> all_processes() {
  std::map<pid_t, Entry> processes;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    pid_t process = 0;
    const auto [stop, bad] = std::from_chars(name.data(), name.data() + name.size(), process);
    Entry entry;
    if (bad == std::errc{} && stop == name.data() + name.size() && read_entry(it->path(), entry)) {
      processes[process] = entry;
    }
  }
  return processes;
}

}  // namespace

Subreaper::Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 0); }

std::vector<pid_t> descendants() {
  const std::map<pid_t, Entry> processes = all_processes();
  std::vector<pid_t> found;
  for (const auto& [process, entry] : processes) {
    if (entry.ended) continue;
    // The way up ends at init; a parent that vanished between two reads ends it too.
    pid_t above = entry.parent;
    for (std::size_t steps = 0; above > 1 && above != getpid() && steps < processes.size(); ++steps) {
      const auto it = processes.find(above);
      above = it == processes.end() ? 0 : it->second.parent;
    }
    if (above == getpid()) found.push_back(process);
  }
  return found;
}

void send_to_all(const std::vector<pid_t>& processes, int signal) {
  for (const pid_t process : processes) kill(process, signal);
}

}  // namespace vramfit
