#include "cli/rehearse/processes/command.h"

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

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"
#include "cli/rehearse/processes/control_group.h"
#include "cli/rehearse/processes/host_use.h"
#include "cli/rehearse/processes/process_tree.h"

namespace vramfit {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAfterSignal{10000}, kTermination{3000}, kKilling{10000};
// Workers that end with their parent need a moment for it; what is still there then was left behind.
constexpr milliseconds kLeaving{1000};
constexpr milliseconds kTick{50}, kLongestWait{1000};

/// As execve takes them.
struct Images {
  std::vector<char*> arguments, environment;
};

/// The child's side between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const CommandStart& start, const Images& images, int join, int error_pipe, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  // Where this fails, as in a group that takes no processes, the command is ended without its help.
  [[maybe_unused]] const ssize_t joined = join >= 0 ? write(join, "0", 1) : 0;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  restore_signals_for_child();
  if (start.output_to_stderr) dup2(STDERR_FILENO, STDOUT_FILENO);
  execve(start.program.c_str(), images.arguments.data(), images.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_pipe, &error, sizeof error);
  _exit(127);
}

pid_t start_process(const CommandStart& start, int join) {
  if (start.warm) {
    hand_over(start, join);
    return start.warm->process;
  }
  std::vector<std::string> words = start.words, environment = environment_with(start.environment);
  const Images images{pointers_to(words), pointers_to(environment)};
  std::array<int, 2> error_pipe{};
  const pid_t parent = getpid();
  if (pipe2(error_pipe.data(), O_CLOEXEC) != 0) throw FaultError("making a pipe failed");
  const pid_t process = fork();
  if (process == 0) become(start, images, join, error_pipe[1], parent);
  close(error_pipe[1]);
  int error = 0;
  const bool failed = process < 0 || read(error_pipe[0], &error, sizeof error) == static_cast<ssize_t>(sizeof error);
  close(error_pipe[0]);
  if (!failed) return process;
  if (process > 0) waitpid(process, nullptr, 0);
  throw FaultError(fmt::format("{}: can't be started: {}{}", printable(start.program),
                               system_reason(process < 0 ? EAGAIN : error),
                               error == ENOENT ? " (the interpreter that its first line or its header names)" : ""));
}

class Watch {
 public:
  Watch(const CommandStart& start, const SignalDescriptor& signals)
      : signals_(signals),
        began_(Clock::now()),
        process_(start_process(start, group_ ? group_->join_descriptor() : -1)) {
    if (start.timeout) time_out_at_ = began_ + *start.timeout;
  }

  CommandEnd run() {
    while (any_left_ && !given_up_) {
      wait_for_something();
      measure();
      take_signal();
      any_left_ = collect_ended(note_end_);
      if (running_ && Clock::now() >= time_out_at_ && !end_.timed_out) {
        end_.timed_out = true;
        end_at_ = Clock::now();
      }
      if (any_left_ && Clock::now() >= end_at_) end_all();
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

  void measure() {
    constexpr milliseconds kBetween{1000};
    if (Clock::now() - measured_ < kBetween) return;
    measured_ = Clock::now();
    end_.host_memory = std::max(end_.host_memory, host_memory_of({process_})[0]);
  }

  void take_signal() {
    const TakenSignal taken = signals_.take();
    if (taken.number == 0) return;
    const bool again = end_.interrupted_by != 0;
    if (!again) end_.interrupted_by = taken.number;
    if (running_ && !taken.from_terminal) kill(process_, taken.number);
    end_at_ = std::min(end_at_, Clock::now() + (again ? milliseconds{0} : kAfterSignal));
  }

  void note_end(pid_t process, int status) {
    if (process != process_) return;
    running_ = false;
    command_ended_ = Clock::now();
    end_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    end_.exit_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end_at_ = std::min(end_at_, Clock::now() + kLeaving);
  }

  void end_all() {
    if (terminated_) return kill_all();
    const std::vector<Descendant> all = descendants();
    if (!running_ && !end_.timed_out && end_.interrupted_by == 0) {
      end_.left_behind = std::max(1, static_cast<int>(all.size()));  // at least one: else this were over
    }
    send_to_all(all, SIGTERM);
    end_at_ = Clock::now() + kTermination;
    terminated_ = true;
  }

  void kill_all() {
    if (group_) group_->kill_all();
    any_left_ = !kill_descendants(kKilling, note_end_);
    if (!any_left_) return;
    given_up_ = true;
    end_.outlived = descendants();
    end_.outlived_unseen = end_.outlived.empty();
    if (running_) command_ended_ = Clock::now();
  }

  const SignalDescriptor& signals_;
  Subreaper subreaper_;
  std::optional<ControlGroup> group_ = ControlGroup::make();
  Clock::time_point began_, command_ended_, measured_;
  pid_t process_;
  bool running_ = true, any_left_ = true, terminated_ = false, given_up_ = false;
  Clock::time_point time_out_at_ = Clock::time_point::max(), end_at_ = Clock::time_point::max();
  CommandEnd end_;
  const Ended note_end_ = [this](pid_t process, int status) { note_end(process, status); };
};

}  // namespace

CommandEnd run_command(const CommandStart& start, const SignalDescriptor& signals) {
  return Watch(start, signals).run();
}

}  // namespace vramfit
