// Progress of something whose end is not known: a line on stderr that counts seconds.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace vramfit {

/// From half a second on shows `what` and the seconds so far on stderr, if that is a terminal, until it is destroyed,
/// when the line is cleared.
class Ticker {
 public:
  explicit Ticker(std::string what);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;
  Ticker(Ticker&&) = delete;
  Ticker& operator=(Ticker&&) = delete;

 private:
  void show();

  std::string what_;
  bool done_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace vramfit
