// A port on loopback, held from the moment it is chosen.
#pragma once

#include <string>

namespace vramfit {

/// A socket that listens on 127.0.0.1.
class LoopbackPort {
 public:
  /// Throws FaultError when there is none.
  LoopbackPort();
  ~LoopbackPort();
  LoopbackPort(const LoopbackPort&) = delete;
  LoopbackPort& operator=(const LoopbackPort&) = delete;
  LoopbackPort(LoopbackPort&&) = delete;
  LoopbackPort& operator=(LoopbackPort&&) = delete;

  int number() const { return number_; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1, number_ = 0;
};

}  // namespace vramfit
