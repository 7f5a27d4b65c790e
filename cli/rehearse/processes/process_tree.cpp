#include "cli/rehearse/processes/process_tree.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace vramfit {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Entry {
  pid_t parent = 0;
  bool ended = false;
  std::string name;
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
  if (const std::size_t open = text.find('('); open < bracket) entry.name = text.substr(open + 1, bracket - open - 1);
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

/// How many process ids behind that of an ended process its child is looked for. Ids are given in order, so only a
/// machine that starts more others between a fork and the next hides one, and then for that moment.
constexpr pid_t kNear = 64;
constexpr milliseconds kChase{20};               // between two looks at all processes
constexpr std::chrono::microseconds kIdle{200};  // about what the quickest link of a chain lives

/// A process that forks and ends hands us its child, which does the same: gone before a look at all processes comes to
/// it. waitpid says of an id at once whether it is a living child of ours.
void kill_children_after(pid_t last, const Ended& ended) {
  for (pid_t next = last + 1; next <= last + kNear; ++next) {
    int status = 0;
    const pid_t found = waitpid(next, &status, WNOHANG | __WALL);
    if (found == 0) kill(next, SIGKILL);
    if (found > 0) ended(found, status);
  }
}

/// Collects for a while what ends; whether any child is left.
bool collect_and_chase(const Ended& ended) {
  const auto until = Clock::now() + kChase;
  while (Clock::now() < until) {
    int status = 0;
    const pid_t process = waitpid(-1, &status, WNOHANG | __WALL);
    if (process < 0) return false;
    if (process == 0) {
      std::this_thread::sleep_for(kIdle);
      continue;
    }
    ended(process, status);
    kill_children_after(process, ended);
  }
  return true;
}

/// What is stopped forks no more.
void stop_descendants(Clock::time_point until) {
  std::set<pid_t> stopped;
  for (bool found_new = true; found_new && Clock::now() < until;) {
    found_new = false;
    for (const Descendant& descendant : descendants()) {
      if (!stopped.insert(descendant.process).second) continue;
      kill(descendant.process, SIGSTOP);
      found_new = true;
    }
  }
}

}  // namespace

Subreaper::Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 0); }

std::vector<Descendant> descendants() {
  const std::map<pid_t, Entry> processes = all_processes();
  std::vector<Descendant> found;
  for (const auto& [process, entry] : processes) {
    if (entry.ended) continue;
    // The way up ends at init; a parent that vanished between two reads ends it too.
    pid_t above = entry.parent;
    for (std::size_t steps = 0; above > 1 && above != getpid() && steps < processes.size(); ++steps) {
      const auto it = processes.find(above);
      above = it == processes.end() ? 0 : it->second.parent;
    }
    if (above == getpid()) found.push_back({process, entry.name});
  }
  return found;
}

std::map<pid_t, pid_t> parents_of_all() {
  std::map<pid_t, pid_t> parents;
  for (const auto& [process, entry] : all_processes()) parents.emplace(process, entry.parent);
  return parents;
}

void send_to_all(const std::vector<Descendant>& processes, int signal) {
  for (const Descendant& descendant : processes) kill(descendant.process, signal);
}

bool collect_ended(const Ended& ended) {
  while (true) {
    int status = 0;
    const pid_t process = waitpid(-1, &status, WNOHANG | __WALL);
    if (process <= 0) return process == 0;
    ended(process, status);
  }
}

bool kill_descendants(milliseconds limit, const Ended& ended) {
  const auto until = Clock::now() + limit;
  while (Clock::now() < until) {
    stop_descendants(until);
    send_to_all(descendants(), SIGKILL);
    if (!collect_and_chase(ended)) return true;
  }
  return !collect_ended(ended);
}

}  // namespace vramfit
