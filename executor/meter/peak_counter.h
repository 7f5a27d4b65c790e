// How many bytes are held, and the most that were held at once, counted from any thread.
#pragma once

#include <algorithm>
#include <mutex>

#include "base/text/units.h"

namespace vramfit {

class PeakCounter {
 public:
  void add(Bytes bytes) {
    const std::scoped_lock lock(mutex_);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void remove(Bytes bytes) {
    const std::scoped_lock lock(mutex_);
    live_ -= bytes;
  }
  Bytes peak() const {
    const std::scoped_lock lock(mutex_);
    return peak_;
  }

 private:
  mutable std::mutex mutex_;
  Bytes live_, peak_;
};

}  // namespace vramfit
