#include "base/process/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/process/keep_memory.h"

namespace vramfit {

namespace {

// No caller has more parts than this that take long, and starting a thread takes as long as a small part.
constexpr std::size_t kMostThreads = 16;

class Parts {
 public:
  Parts(std::size_t count, const std::function<void(std::size_t)>& work) : work_(work), errors_(count) {}

  /// Takes parts until none is left.
  void take() {
    for (std::size_t part = next_++; part < errors_.size(); part = next_++) {
      try {
        work_(part);
      } catch (...) {
        errors_[part] = std::current_exception();
      }
    }
  }

  bool are_left() const { return next_ < errors_.size(); }

  void rethrow() const {
    const auto first = std::ranges::find_if(errors_, [](const std::exception_ptr& error) { return error != nullptr; });
    if (first != errors_.end()) std::rethrow_exception(*first);
  }

 private:
  const std::function<void(std::size_t)>& work_;
  std::vector<std::exception_ptr> errors_;  // by part
  std::atomic<std::size_t> next_ = 0;
};

/// The threads of one call. Those that find no part left help with calls inside the parts of the others.
class Crew {
 public:
  /// Before a thread begins with the parts of the call itself.
  void add() {
    const std::scoped_lock lock(mutex_);
    ++busy_;
  }

  void leave() {
    const std::scoped_lock lock(mutex_);
    --busy_;
  }

  /// After that thread has found none left: until no thread is busy with one.
  void help() {
    std::unique_lock lock(mutex_);
    --busy_;
    changed_.notify_all();
    while (busy_ > 0) {
      const auto shared = std::ranges::find_if(shared_, [](const Shared* each) { return each->parts.are_left(); });
      if (shared == shared_.end()) {
        changed_.wait(lock);
        continue;
      }
      Shared& with = **shared;
      ++with.helpers;
      lock.unlock();
      with.parts.take();
      lock.lock();
      --with.helpers;
      changed_.notify_all();
    }
  }

  /// The parts of a call inside a part, with whoever helps.
  void take(Parts& parts) {
    Shared shared{parts};
    {
      const std::scoped_lock lock(mutex_);
      shared_.push_back(&shared);
    }
    changed_.notify_all();
    parts.take();
    std::unique_lock lock(mutex_);
    std::erase(shared_, &shared);
    changed_.wait(lock, [&] { return shared.helpers == 0; });
  }

 private:
  struct Shared {
    Parts& parts;
    int helpers = 0;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Shared*> shared_;
  int busy_ = 0;
};

thread_local Crew* crew_of_thread = nullptr;

std::size_t threads_for(std::size_t count) {
  return std::min({count, kMostThreads, std::size_t{std::thread::hardware_concurrency()}});
}

}  // namespace

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  Parts parts(count, work);
  if (crew_of_thread != nullptr) {
    crew_of_thread->take(parts);
    parts.rethrow();
    return;
  }
  Crew crew;
  const auto take = [&] {
    crew_of_thread = &crew;
    parts.take();
    crew.help();
    crew_of_thread = nullptr;
  };
  std::vector<std::jthread> others;
  others.reserve(kMostThreads);
  crew.add();
  while (others.size() + 1 < threads_for(count)) {
    crew.add();
    try {
      others.emplace_back([&] {
        ask_for_large_pages_in_thread();
        take();
      });
    } catch (const std::exception&) {  // no more threads are to be had, or no memory for them: those that run do
      crew.leave();
      break;
    }
  }
  take();
  others.clear();  // joins
  parts.rethrow();
}

}  // namespace vramfit
