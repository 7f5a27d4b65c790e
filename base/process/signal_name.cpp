#include "base/process/signal_name.h"

#include <algorithm>
#include <array>
#include <csignal>

namespace vramfit {
namespace {

struct Row {
  int number;
  std::string_view name;
};

constexpr std::array kSignals{
    Row{SIGHUP, "HUP"},    Row{SIGINT, "INT"},       Row{SIGQUIT, "QUIT"}, Row{SIGILL, "ILL"},   Row{SIGTRAP, "TRAP"},
    Row{SIGABRT, "ABRT"},  Row{SIGBUS, "BUS"},       Row{SIGFPE, "FPE"},   Row{SIGKILL, "KILL"}, Row{SIGUSR1, "USR1"},
    Row{SIGSEGV, "SEGV"},  Row{SIGUSR2, "USR2"},     Row{SIGPIPE, "PIPE"}, Row{SIGALRM, "ALRM"}, Row{SIGTERM, "TERM"},
    Row{SIGCHLD, "CHLD"},  Row{SIGSTKFLT, "STKFLT"}, Row{SIGCONT, "CONT"}, Row{SIGSTOP, "STOP"}, Row{SIGTSTP, "TSTP"},
    Row{SIGTTIN, "TTIN"},  Row{SIGTTOU, "TTOU"},     Row{SIGURG, "URG"},   Row{SIGXCPU, "XCPU"}, Row{SIGXFSZ, "XFSZ"},
    Row{SIGPROF, "PROF"},  Row{SIGVTALRM, "VTALRM"}, Row{SIGPOLL, "POLL"}, Row{SIGPWR, "PWR"},   Row{SIGSYS, "SYS"},
    Row{SIGWINCH, "WINCH"}};

}  // namespace

std::string_view signal_name(int signal) {
  const auto* row = std::ranges::find(kSignals, signal, &Row::number);
  return row == kSignals.end() ? "?" : row->name;
}

}  // namespace vramfit
