#include "cli/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/system_reason.h"
#include "cli/launch/environment.h"

namespace vramfit {

namespace {

constexpr std::size_t kLongestLine = 4096;
constexpr int kNotExecutable = 127;

[[noreturn]] void fail(const char* what) { throw FaultError(std::string(what) + ": " + system_reason(errno)); }

/// The child's side between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(char* const* argv, char* const* environment, int error_pipe, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kNotExecutable);  // the parent ended before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  restore_signals_for_child();
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(error_pipe, STDERR_FILENO);
  execve(argv[0], argv, environment);
  constexpr std::string_view kMessage = "vramfit-train: can't be executed\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(kNotExecutable);
}

}  // namespace

RankProcess::RankProcess(int rank, const RankStart& start) : rank_(rank) {
  std::vector<std::string> arguments{start.program};
  arguments.insert(arguments.end(), start.arguments.begin(), start.arguments.end());
  std::vector<std::string> environment = environment_with(start.environment);
  const std::vector<char*> argv = pointers_to(arguments), envp = pointers_to(environment);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("making a pipe");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) become(argv.data(), envp.data(), ends[1], parent);
  close(ends[1]);
  pipe_ = ends[0];
  if (process_ < 0) fail("starting a rank");
  setpgid(process_, process_);  // also here: whichever side comes first
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : last_error(std::move(other.last_error)),
      rank_(other.rank_),
      process_(std::exchange(other.process_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      status_(other.status_),
      running_(std::exchange(other.running_, false)),
      partial_(std::move(other.partial_)) {}

RankProcess::~RankProcess() {
  if (pipe_ >= 0) close(pipe_);
  if (!running_ || process_ < 0) return;
  send(SIGKILL);
  waitpid(process_, nullptr, 0);
}

std::vector<std::string> RankProcess::read_lines(bool& open) {
  std::array<char, 4096> buffer{};
  std::vector<std::string> lines;
  open = true;
  while (true) {
    const ssize_t count = ::read(pipe_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      open = count < 0 && errno == EAGAIN;
      break;
    }
    partial_.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
      lines.push_back(partial_.substr(0, end));
      partial_.erase(0, end + 1);
    }
    if (partial_.size() > kLongestLine) lines.emplace_back().swap(partial_);
  }
  if (!open && !partial_.empty()) lines.emplace_back().swap(partial_);
  return lines;
}

void RankProcess::ended(int status) {
  status_ = status;
  running_ = false;
}

void RankProcess::send(int signal) const { kill(-process_, signal); }

bool RankProcess::failed() const { return !running_ && status_ != 0; }
int RankProcess::exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1; }
int RankProcess::exit_signal() const { return WIFSIGNALED(status_) ? WTERMSIG(status_) : 0; }

}  // namespace vramfit
