#include "cli/rehearse/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "cli/rehearse/process_tree.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAfterSignal{10000}, kTermination{3000};
// Workers that end with their parent need a moment for it; what is still there then was left behind.
constexpr milliseconds kLeaving{1000};
constexpr milliseconds kTick{50}, kLongestWait{1000};

/// The child's side between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const CommandStart& start, char* const* argv, char* const* environment,
                         const std::array<int, 2>& error_pipe, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (start.output_to_stderr) dup2(STDERR_FILENO, STDOUT_FILENO);
  execve(start.program.c_str(), argv, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_pipe[1], &error, sizeof error);
  _exit(127);
}

pid_t start_process(const CommandStart& start) {
  std::vector<std::string> words = start.words, environment = environment_with(start.environment);
  const std::vector<char*> argv = pointers_to(words), envp = pointers_to(environment);
  std::array<int, 2> error_pipe{};
  const pid_t parent = getpid();
  if (pipe2(error_pipe.data(), O_CLOEXEC) != 0) throw FaultError("making a pipe failed");
  const pid_t process = fork();
  if (process == 0) become(start, argv.data(), envp.data(), error_pipe, parent);
  close(error_pipe[1]);
  int error = 0;
  const bool failed = process < 0 || read(error_pipe[0], &error, sizeof error) == static_cast<ssize_t>(sizeof error);
  close(error_pipe[0]);
  if (!failed) return process;
  if (process > 0) waitpid(process, nullptr, 0);
  throw FaultError(fmt::format("{}: can't be started: {}{}", printable(start.program),
                               std::generic_category().message(process < 0 ? EAGAIN : error),
                               error == ENOENT ? " (the interpreter that its first line or its header names)" : ""));
}

class Watch {
 public:
  Watch(const CommandStart& start, const SignalDescriptor& signals)
      : signals_(signals), began_(Clock::now()), process_(start_process(start)) {
    if (start.timeout) time_out_at_ = began_ + *start.timeout;
  }

  CommandEnd run() {
    while (running_ || !descendants().empty()) {
      wait_for_something();
      take_signal();
      collect();
      if (running_ && Clock::now() >= time_out_at_ && !end_.timed_out) {
        end_.timed_out = true;
        end_at_ = Clock::now();
      }
      if (Clock::now() >= end_at_) end_all();
    }
    end_.seconds = std::chrono::duration<double>(command_ended_ - began_).count();
    return end_;
  }

 private:
  void wait_for_something() const {
    const auto until = std::min({time_out_at_, end_at_, Clock::now() + (running_ ? kLongestWait : kTick)});
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    pollfd signals{signals_.descriptor(), POLLIN, 0};
    poll(&signals, 1, static_cast<int>(std::max<long>(1, left)));
  }

  void take_signal() {
    const TakenSignal taken = signals_.take();
    if (taken.number == 0) return;
    const bool again = end_.interrupted_by != 0;
    if (!again) end_.interrupted_by = taken.number;
    if (running_ && !taken.from_terminal) kill(process_, taken.number);
    end_at_ = std::min(end_at_, Clock::now() + (again ? milliseconds{0} : kAfterSignal));
  }

  /// Every descendant that ended is collected here, also those that others left to us.
  void collect() {
    int status = 0;
    for (pid_t ended = waitpid(-1, &status, WNOHANG); ended > 0; ended = waitpid(-1, &status, WNOHANG)) {
      if (ended != process_) continue;
      running_ = false;
      command_ended_ = Clock::now();
      end_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      end_.exit_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      end_at_ = std::min(end_at_, Clock::now() + kLeaving);
    }
  }

  void end_all() {
    const std::vector<pid_t> all = descendants();
    if (!running_ && !killing_ && !end_.timed_out && end_.interrupted_by == 0) {
      end_.left_behind = static_cast<int>(all.size());
    }
    send_to_all(all, killing_ ? SIGKILL : SIGTERM);
    end_at_ = Clock::now() + (killing_ ? kTick : kTermination);
    killing_ = true;
  }

  const SignalDescriptor& signals_;
  Subreaper subreaper_;
  Clock::time_point began_, command_ended_;
  pid_t process_;
  bool running_ = true, killing_ = false;
  Clock::time_point time_out_at_ = Clock::time_point::max(), end_at_ = Clock::time_point::max();
  CommandEnd end_;
};

}  // namespace

CommandEnd run_command(const CommandStart& start, const SignalDescriptor& signals) {
  return Watch(start, signals).run();
}

}  // namespace vramfit
