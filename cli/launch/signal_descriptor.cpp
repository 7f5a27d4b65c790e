#include "cli/launch/signal_descriptor.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"

namespace vramfit {

SignalDescriptor::SignalDescriptor() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, &saved_);
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw FaultError("signalfd failed");
}

SignalDescriptor::~SignalDescriptor() {
  close(descriptor_);
  sigprocmask(SIG_SETMASK, &saved_, nullptr);
}

TakenSignal SignalDescriptor::take() const {
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    return {static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
  }
  return {};
}

}  // namespace vramfit
