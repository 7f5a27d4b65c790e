// A port on loopback for ranks to meet at, held from the moment it is chosen.
#pragma once

#include <string>

namespace vramfit {

/// A socket that listens on 127.0.0.1. Rank 0 inherits it, so that no other program can take the port in between.
class LoopbackPort {
 public:
  /// `wanted` 0: any free port. Throws FaultError when it is taken.
  explicit LoopbackPort(int wanted);
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

/// MASTER_PORT of the environment, or 0; throws InputError for what is no port.
int wanted_port();

}  // namespace vramfit
