#include "cli/rehearse/search/trial_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "base/numbers/most_bytes.h"
#include "base/process/signal_name.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostOfLine = 64 << 10;
constexpr std::int64_t kMostCode = 255, kMostProcesses = 1 << 22, kMostAssumptions = 1 << 30;

std::string document_of(const RehearsalTrial& trial) {
  JsonWriter writer(JsonForm::one_line);
  writer.begin_object().member("error", "").member("verdict", trial.verdict).member("why", trial.why);
  writer.member("total_bytes", trial.total).member("exit_code", trial.exit_code);
  writer.member("interrupted", trial.is_interrupted).member("processes", trial.processes);
  writer.member("assumptions", trial.assumptions).end_object();
  return writer.take();
}

std::string document_of(const char* error, ExitCode code) {
  JsonWriter writer(JsonForm::one_line);
  writer.begin_object().member("error", error).member("exit_code", static_cast<int>(code)).end_object();
  return writer.take();
}

std::string document_for(const SearchPoint& point, const RunTrial& run) {
  try {
    return document_of(run(point));
  } catch (const Error& error) {
    return document_of(error.what(), error.code);
  } catch (const std::exception& error) {
    return document_of(error.what(), ExitCode::failed);
  }
}

void write_all(int descriptor, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the reader is gone
    done += static_cast<std::size_t>(written);
  }
}

void redirect(int descriptor, int to) {
  if (descriptor < 0) return;
  dup2(descriptor, to);
  close(descriptor);
}

/// What has come; nothing at the end.
std::optional<std::string> read_some(int descriptor) {
  std::array<char, 1 << 16> part{};
  const ssize_t got = ::read(descriptor, part.data(), part.size());
  if (got > 0) return std::string(part.data(), static_cast<std::size_t>(got));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return "";
  return std::nullopt;
}

}  // namespace

void write_trial(int result, const SearchPoint& point, const RunTrial& run) {
  write_all(result, document_for(point, run));
}

StartTrial forked_trial(RunTrial run) {
  return [run = std::move(run)](const SearchPoint& point, int output, int result) {
    std::fflush(nullptr);  // or both would write what is still to be written
    const pid_t parent = getpid();
    const pid_t process = fork();
    if (process < 0) throw FaultError("a process can't be started");
    if (process > 0) return process;
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // then it ends what it started
    if (getppid() != parent) _exit(1);
    redirect(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    if (output != STDERR_FILENO) dup2(output, STDOUT_FILENO), dup2(output, STDERR_FILENO);
    write_trial(result, point, run);
    _exit(0);
  };
}

TrialProcess::TrialProcess(const SearchPoint& point, const StartTrial& start, bool shows_lines) : point_(point) {
  std::array<int, 2> result{-1, -1}, lines{-1, -1};
  if (pipe2(result.data(), O_CLOEXEC) != 0 || (shows_lines && pipe2(lines.data(), O_CLOEXEC) != 0)) {
    throw FaultError("making a pipe failed");
  }
  process_ = start(point, shows_lines ? lines[1] : STDERR_FILENO, result[1]);
  close(result[1]);
  if (shows_lines) close(lines[1]);
  result_ = result[0];
  lines_ = lines[0];
  for (const int descriptor : {result_, lines_}) {
    if (descriptor >= 0) fcntl(descriptor, F_SETFL, O_NONBLOCK);
  }
}

TrialProcess::TrialProcess(TrialProcess&& other) noexcept
    : point_(std::move(other.point_)),
      process_(std::exchange(other.process_, -1)),
      result_(std::exchange(other.result_, -1)),
      lines_(std::exchange(other.lines_, -1)),
      status_(other.status_),
      document_(std::move(other.document_)),
      shown_(std::move(other.shown_)) {}

TrialProcess::~TrialProcess() {
  for (const int descriptor : {result_, lines_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

void TrialProcess::signal(int number) const {
  if (result_ >= 0) kill(process_, number);
}

bool TrialProcess::read() {
  if (lines_ >= 0) {
    const auto part = read_some(lines_);
    if (part) shown_ += *part;
    if (!part) close(std::exchange(lines_, -1));
    show_lines(lines_ < 0);
  }
  const auto part = read_some(result_);
  if (part) {
    document_ += *part;
    return false;
  }
  close(std::exchange(result_, -1));
  while (waitpid(process_, &status_, 0) < 0 && errno == EINTR) {
  }
  while (lines_ >= 0) {
    const auto rest = read_some(lines_);
    if (!rest || rest->empty()) break;  // what still holds it could not be ended
    shown_ += *rest;
  }
  show_lines(true);
  return true;
}

/// What a progress bar overwrote is left out.
void TrialProcess::show_lines(bool to_the_end) {
  while (!shown_.empty()) {
    std::size_t end = shown_.find('\n');
    const bool is_whole = end != std::string::npos;
    if (!is_whole && !to_the_end && shown_.size() < kMostOfLine) return;
    if (!is_whole) end = shown_.size();
    std::string line = shown_.substr(0, end);
    while (line.ends_with('\r')) line.pop_back();
    line = line.substr(line.rfind('\r') + 1);
    std::fputs(fmt::format("[{}] {}\n", point_text(point_), line).c_str(), stderr);
    shown_.erase(0, is_whole ? end + 1 : end);
  }
}

RehearsalTrial TrialProcess::take_trial() {
  if (document_.empty()) {
    throw FaultError(fmt::format(
        "{}: the process that rehearsed it was ended{}", point_text(point_),
        WIFSIGNALED(status_) ? fmt::format(" by signal {} ({})", WTERMSIG(status_), signal_name(WTERMSIG(status_)))
                             : ""));
  }
  const JsonValue value = parse_json(document_, "the result of a rehearsal");
  JsonObject object(value, "the result of a rehearsal");
  const std::string error = object.text("error");
  const auto code = static_cast<int>(object.integer("exit_code", 0, kMostCode));
  if (!error.empty()) throw Error(static_cast<ExitCode>(code), error);
  return {.point = point_,
          .verdict = object.text("verdict"),
          .why = object.text("why"),
          .total = {object.integer("total_bytes", 0, kMostStatedBytes)},
          .exit_code = code,
          .is_interrupted = object.boolean("interrupted"),
          .is_cached = false,
          .processes = static_cast<int>(object.integer("processes", 0, kMostProcesses)),
          .assumptions = object.integer("assumptions", 0, kMostAssumptions)};
}

}  // namespace vramfit
