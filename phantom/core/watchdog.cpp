#include "phantom/core/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace vramfit::phantom {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// ProcessGroupNCCL.cpp, ProcessGroupNCCL::Watchdog::run and kWatchdogThreadSleepMillis (PyTorch 2.11).
constexpr const char* kWatchdogName = "pt_nccl_watchdg";
constexpr milliseconds kLooksEvery{100};
// Quiet for this long: it has looked at everything and has nothing left to ask about.
constexpr milliseconds kQuiet{2 * kLooksEvery};
// A program that names no end of a step for so long is not held any more.
constexpr milliseconds kLongestHold{30'000};

std::atomic<bool> holding{false};
std::atomic<int> period{0};
std::atomic<Clock::rep> last_look{0}, period_began{0};

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

bool is_watchdog() {
  // A thread gets its name after it starts, so only "yes" is kept.
  static thread_local bool is_one = false;
  if (is_one) return true;
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  is_one = std::strcmp(name.data(), kWatchdogName) == 0;
  return is_one;
}

bool has_watchdog() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == kWatchdogName) return true;
  }
  return false;
}

milliseconds since(Clock::rep moment) {
  return std::chrono::duration_cast<milliseconds>(Clock::duration(now() - moment));
}

}  // namespace

int current_period() { return period; }

bool is_held_back(const Event& event) {
  if (!holding || !is_watchdog()) return false;
  last_look = now();
  return event.period >= period && since(period_began) < kLongestHold;
}

}  // namespace vramfit::phantom

namespace phantom = vramfit::phantom;

PHANTOM_EXPORT void phantomHoldWatchdog() {
  phantom::period_began = phantom::now();
  phantom::holding = true;
}

PHANTOM_EXPORT void phantomReleaseWatchdog() { phantom::holding = false; }

PHANTOM_EXPORT void phantomSettleWatchdog() {
  if (!phantom::holding) return;
  ++phantom::period;
  phantom::period_began = phantom::now();
  if (!phantom::has_watchdog()) return;
  while (phantom::since(std::max(phantom::last_look.load(), phantom::period_began.load())) < phantom::kQuiet) {
    std::this_thread::sleep_for(phantom::kLooksEvery / 10);
  }
}
