// Signals that ask this program to end, read from a descriptor instead of interrupting it.
#pragma once

#include <csignal>

namespace vramfit {

struct TakenSignal {
  int number = 0;              // 0: none came
  bool from_terminal = false;  // Ctrl-C: every process of the terminal's group got it too
};

/// Takes SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGQUIT through a descriptor while it lives. Throws FaultError.
class SignalDescriptor {
 public:
  SignalDescriptor();
  ~SignalDescriptor();
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  SignalDescriptor(SignalDescriptor&&) = delete;
  SignalDescriptor& operator=(SignalDescriptor&&) = delete;

  int descriptor() const { return descriptor_; }
  /// The next signal that asks this program to end; SIGCHLD only wakes.
  TakenSignal take() const;

 private:
  sigset_t saved_{};
  int descriptor_ = -1;
};

}  // namespace vramfit
