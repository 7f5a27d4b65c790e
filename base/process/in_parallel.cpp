#include "base/process/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace vramfit {

namespace {

// No caller has more parts than this that take long, and starting a thread takes as long as a small part.
constexpr std::size_t kMostThreads = 16;

thread_local bool is_inside = false;

class Parts {
 public:
  Parts(std::size_t count, const std::function<void(std::size_t)>& work) : work_(work), errors_(count) {}

  /// Takes parts until none is left.
  void take() {
    const bool was_inside = std::exchange(is_inside, true);
    for (std::size_t part = next_++; part < errors_.size(); part = next_++) {
      try {
        work_(part);
      } catch (...) {
        errors_[part] = std::current_exception();
      }
    }
    is_inside = was_inside;
  }

  void rethrow() const {
    const auto first = std::ranges::find_if(errors_, [](const std::exception_ptr& error) { return error != nullptr; });
    if (first != errors_.end()) std::rethrow_exception(*first);
  }

 private:
  const std::function<void(std::size_t)>& work_;
  std::vector<std::exception_ptr> errors_;  // by part
  std::atomic<std::size_t> next_ = 0;
};

std::size_t threads_for(std::size_t count) {
  if (is_inside) return 1;
  return std::min({count, kMostThreads, std::size_t{std::thread::hardware_concurrency()}});
}

}  // namespace

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  Parts parts(count, work);
  std::vector<std::jthread> others;
  try {
    while (others.size() + 1 < threads_for(count)) others.emplace_back([&parts] { parts.take(); });
  } catch (const std::system_error&) {  // no more threads are to be had: those that run do
  }
  parts.take();
  others.clear();  // joins
  parts.rethrow();
}

}  // namespace vramfit
