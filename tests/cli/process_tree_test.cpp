#include "cli/rehearse/processes/process_tree.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <new>
#include <thread>

#include "cli/rehearse/processes/control_group.h"

namespace vramfit {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// What a test starts ends by itself after this, also when the test fails, and is never more than so many processes.
constexpr seconds kLongest{60};
constexpr int kMost = 200;

/// Shared by all that a test starts.
struct Bounds {
  Clock::time_point until;
  std::atomic<int> started;
};

Bounds& new_bounds() {
  void* memory = mmap(nullptr, sizeof(Bounds), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return *new (memory) Bounds{Clock::now() + kLongest, 0};
}

/// Forks and ends, its child does the same, each in a session of its own and deaf to SIGTERM. One at a time.
[[noreturn]] void chain(const Bounds& bounds) {
  std::signal(SIGTERM, SIG_IGN);
  while (Clock::now() < bounds.until) {
    if (fork() != 0) _exit(0);  // also when there is no child
    setsid();
  }
  _exit(0);
}

/// Forks children that fork children.
[[noreturn]] void spread(Bounds& bounds) {
  while (Clock::now() < bounds.until) {
    if (bounds.started < kMost && bounds.started++ < kMost && fork() == 0) spread(bounds);
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  _exit(0);
}

/// A process that starts something, lets it run for a moment, and ends it; its exit code is what `end` returns.
int started_and_ended(const std::function<void(Bounds&)>& start, const std::function<int()>& end) {
  Bounds& bounds = new_bounds();
  const pid_t parent = fork();
  if (parent == 0) {
    const Subreaper subreaper;
    if (fork() == 0) {
      start(bounds);
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    _exit(end());
  }
  int status = 0;
  waitpid(parent, &status, 0);
  bounds.until = Clock::time_point::min();  // whatever was not ended ends now
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void ignore(pid_t /*process*/, int /*status*/) {}

/// 0 when all are ended, and the kernel says so.
int kill_them() {
  if (!kill_descendants(seconds(30), ignore)) return 1;
  return waitpid(-1, nullptr, WNOHANG | __WALL) == -1 && errno == ECHILD ? 0 : 2;
}

TEST_CASE("processes that fork and end, one after the other, are ended") {
  for (int i = 0; i < 3; ++i) CHECK(started_and_ended(chain, kill_them) == 0);
}

TEST_CASE("processes that multiply are ended") { CHECK(started_and_ended(spread, kill_them) == 0); }

TEST_CASE("whether a descendant is left is known even where none can be looked at") {
  // The links of a chain are too short-lived for /proc; that it is there is certain all the same.
  const auto looks = [] {
    for (int i = 0; i < 200; ++i) {
      if (!collect_ended(ignore)) return 1;
    }
    return kill_them();
  };
  CHECK(started_and_ended(chain, looks) == 0);
}

TEST_CASE("a control group ends at once all that was started in it") {
  if (!ControlGroup::make()) {
    MESSAGE("not tried: no control group can be made here");
    return;
  }
  Bounds& bounds = new_bounds();
  const auto ends = [&] {
    const auto group = ControlGroup::make();
    if (!group) return 3;
    const pid_t child = fork();
    if (child == 0) {
      if (write(group->join_descriptor(), "0", 1) != 1) _exit(0);
      chain(bounds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (!collect_ended(ignore)) return 4;  // it could not join
    group->kill_all();
    const auto until = Clock::now() + kLongest / 2;
    while (collect_ended(ignore)) {
      if (Clock::now() > until) return kill_them() + 5;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 0;
  };
  CHECK(started_and_ended([](Bounds&) {}, ends) == 0);
}

}  // namespace
}  // namespace vramfit
