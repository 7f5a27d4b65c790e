#include "cli/rehearse/warm/warm_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/json/json_writer.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/rehearse/processes/environment.h"
#include "cli/rehearse/processes/program_file.h"
#include "cli/rehearse/warm/warm_process.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostOfAnswer = 1 << 16;
constexpr int kNoPort = 1;  // of the ghosts' store: each rehearsal has its own, and none is there during the imports

std::string choices_of(const WarmCommand& command, const std::string& modules) {
  namespace fs = std::filesystem;
  const fs::path script = fs::weakly_canonical(command.script);
  JsonWriter writer(JsonForm::one_line);
  writer.begin_object();
  if (modules.empty()) {
    writer.member("head", script.string());
  } else {
    writer.member("modules", split_list(modules));
  }
  writer.member("folder", command.script.empty() ? fs::current_path().string() : script.parent_path().string());
  writer.member("skip", static_cast<std::int64_t>(command.python.size())).end_object();
  std::string text = writer.take();
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

/// As a rehearsal's own, without what belongs to one of them.
EnvironmentChanges server_environment(const RehearsalRequest& request, const std::string& session) {
  EnvironmentChanges changes = phantom_environment(request.library, session);
  changes.insert(changes.end(), request.environment.begin(), request.environment.end());
  if (request.played_rank) {
    const EnvironmentChanges rank = rank_environment(request.cluster, *request.played_rank, kNoPort);
    changes.insert(changes.end(), rank.begin(), rank.end());
  }
  changes.emplace_back("VRAMFIT_WARM_SERVER", "1");
  return changes;
}

struct Images {
  const char* program;
  std::vector<char*> words, environment;
};

/// The child's side between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const Images& images, int quiet, int said, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  restore_signals_for_child();
  dup2(quiet, STDIN_FILENO);
  dup2(quiet, STDOUT_FILENO);
  dup2(said, STDERR_FILENO);
  execve(images.program, images.words.data(), images.environment.data());
  _exit(127);
}

/// The last line of what Python said.
std::string last_line(const std::string& path) {
  std::string text = read_file(path);
  while (text.ends_with('\n')) text.pop_back();
  text = text.substr(text.rfind('\n') + 1);
  return text.empty() ? "Python ended while it imported" : printable(text, 400);
}

/// Sends `text` in one message, with descriptors.
bool send_with(int to, const std::string& text, const std::array<int, 4>& descriptors) {
  iovec part{const_cast<char*>(text.data()), text.size()};  // NOLINT(cppcoreguidelines-pro-type-const-cast): only read
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptors)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof descriptors);
  return sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

/// Up to its end.
std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 64> part{};
  while (true) {
    const ssize_t got = read(descriptor, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

/// As server.py reads it.
std::string request_text(const std::vector<std::string>& words, const EnvironmentChanges& environment) {
  std::vector<std::string> fields{fmt::to_string(words.size())};
  fields.insert(fields.end(), words.begin(), words.end());
  fields.push_back(std::filesystem::current_path().string());
  fields.push_back(fmt::to_string(getpid()));
  const std::vector<std::string> variables = environment_with(environment);
  fields.insert(fields.end(), variables.begin(), variables.end());
  return zero_ended(fields);
}

}  // namespace

WarmServer::WarmServer(const RehearsalRequest& request, const WarmCommand& command, const std::string& modules)
    : session_(""), environment_(request.environment) {
  if (modules.empty() && command.script.empty())
    throw InputError("of -m MODULE it doesn't know the imports: name them");
  const auto began = Clock::now();
  write_file(session_.path() + "/session.json",
             session_to_json(request.cluster, request.played_rank, request.settings));
  const std::string said = session_.path() + "/said";
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw FaultError("making a socket failed");
  requests_ = ends[0];
  const int quiet = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int errors = open(said.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  fcntl(ends[1], F_SETFD, 0);
  std::vector<std::string> words = command.python;
  words.insert(words.end(), {request.library + "/python/vramfit_warm/server.py", fmt::to_string(ends[1]),
                             choices_of(command, modules)});
  std::vector<std::string> environment = environment_with(server_environment(request, session_.path()));
  const std::string program = find_program(words[0]);
  const Images images{program.c_str(), pointers_to(words), pointers_to(environment)};
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) become(images, quiet, errors, parent);
  for (const int descriptor : {ends[1], quiet, errors}) close(descriptor);
  std::string answer(kMostOfAnswer, '\0');
  ssize_t got = -1;
  while (process_ > 0 && (got = recv(requests_, answer.data(), answer.size(), 0)) < 0 && errno == EINTR) {
  }
  if (got <= 0) {
    close(requests_);
    if (process_ > 0) waitpid(process_, nullptr, 0);
    throw InputError(last_line(said));
  }
  imported_ = answer.substr(0, static_cast<std::size_t>(got));
  seconds_ = std::chrono::duration<double>(Clock::now() - began).count();
}

WarmServer::~WarmServer() {
  close(requests_);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

pid_t WarmServer::start(const std::vector<std::string>& words, int output, int result) const {
  std::array<int, 2> number{-1, -1};
  if (pipe2(number.data(), O_CLOEXEC) != 0) throw FaultError("making a pipe failed");
  const bool is_sent = send_with(requests_, request_text(words, environment_), {output, output, number[1], result});
  close(number[1]);
  const std::string text = is_sent ? read_all(number[0]) : "";
  close(number[0]);
  pid_t process = 0;
  std::from_chars(text.data(), text.data() + text.size(), process);
  if (process <= 0) throw FaultError("the process with the imports doesn't answer");
  return process;
}

}  // namespace vramfit
