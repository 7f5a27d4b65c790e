#include "cli/format/ticker.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include <fmt/format.h>

namespace vramfit {

Ticker::Ticker(std::string what) : what_(std::move(what)) {
  if (::isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { show(); });
}

Ticker::~Ticker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Ticker::show() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kWait{500};
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(mutex_);
  bool is_shown = false;
  while (!changed_.wait_for(lock, kWait, [this] { return done_; })) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print(stderr, "\r{}, {:.0f} s ", what_, seconds);
    std::fflush(stderr);
    is_shown = true;
  }
  if (is_shown) std::fputs("\r\x1b[K", stderr);
}

}  // namespace vramfit
