// vramfit-train for tests of many runs: has LibTorch loaded, which takes longer than a tiny model's training, and plays
// each vramfit-train as a fork. `train_forks SOCKET` says "ready" and serves train_client.cpp until its stdin ends.
#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/process/instrumented.h"

int vramfit_train_main(int argc, char** argv);  // main of executor/main.cpp

namespace {

constexpr int kStreams = 3;

struct Request {
  std::array<int, kStreams> streams{};
  std::vector<std::string> words;
  std::string folder;
  std::vector<std::string> environment;
};

void read_all(int connection, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t count = read(connection, to, bytes);
    if (count <= 0) throw std::runtime_error("a request ends early");
    to += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

/// The length of what follows, with which stdin, stdout and stderr come.
std::uint64_t read_length(int connection, std::array<int, kStreams>& streams) {
  std::uint64_t length = 0;
  iovec part{&length, sizeof length};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof streams)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(connection, &message, MSG_WAITALL) != static_cast<ssize_t>(sizeof length))
    throw std::runtime_error("no request");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) throw std::runtime_error("a request without streams");
  std::memcpy(streams.data(), CMSG_DATA(header), sizeof streams);
  return length;
}

Request read_request(int connection) {
  Request request;
  std::string text(read_length(connection, request.streams), '\0');
  read_all(connection, text.data(), text.size());
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < text.size(); at += fields.back().size() + 1) fields.emplace_back(text.c_str() + at);
  const auto words = std::stoul(fields.at(0));
  request.words.assign(fields.begin() + 1, fields.begin() + 1 + static_cast<std::ptrdiff_t>(words));
  request.folder = fields.at(1 + words);
  request.environment.assign(fields.begin() + 2 + static_cast<std::ptrdiff_t>(words), fields.end());
  return request;
}

/// Variables that stay as they are aren't touched: an audit library, which has a C library of its own, looks where they
/// were at the start.
void take_environment(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> wanted;
  for (const std::string& entry : environment) {
    const std::size_t name = entry.find('=');
    if (name != std::string::npos) wanted[entry.substr(0, name)] = entry.substr(name + 1);
  }
  std::vector<std::string> unwanted;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!wanted.contains(name)) unwanted.push_back(name);
  }
  for (const std::string& name : unwanted) unsetenv(name.c_str());
  for (const auto& [name, value] : wanted) {
    const char* const now = std::getenv(name.c_str());
    if (now == nullptr || value != now) setenv(name.c_str(), value.c_str(), 1);
  }
}

/// Under the stand-ins: the fork plays the cards that its own environment names.
void follow_session() {
  const char* const library = std::getenv("VRAMFIT_PHANTOM_LIB");
  if (std::getenv("VRAMFIT_PHANTOM") == nullptr || library == nullptr) return;
  void* const phantom = dlopen((std::string(library) + "/libvramfit-phantom.so").c_str(), RTLD_LAZY);
  void* const follow = phantom == nullptr ? nullptr : dlsym(phantom, "vramfit_session_follow");
  if (follow == nullptr) _exit(1);
  reinterpret_cast<void (*)()>(follow)();
}

[[noreturn]] void play(Request request) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < kStreams; ++i) {
    dup2(request.streams[static_cast<std::size_t>(i)], i);
    close(request.streams[static_cast<std::size_t>(i)]);
  }
  if (chdir(request.folder.c_str()) != 0) _exit(1);
  take_environment(request.environment);
  follow_session();
  std::vector<char*> argv;
  for (std::string& word : request.words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int code = vramfit_train_main(static_cast<int>(request.words.size()), argv.data());
  if (vramfit::kIsInstrumented) std::exit(code);  // sanitizers report then
  std::fflush(nullptr);
  _exit(code);
}

/// A descriptor that becomes readable when the process ends; -1 with errno set.
int ending_of(pid_t process) { return static_cast<int>(syscall(SYS_pidfd_open, process, 0)); }

/// Tells the client how the fork ended. Signals that the client tells of are the fork's; when the client is gone, so is
/// the fork.
void attend(int connection, pid_t played) {
  const int ended = ending_of(played);
  if (ended < 0) {
    const int error = errno;
    kill(played, SIGKILL);
    waitpid(played, nullptr, 0);
    throw std::runtime_error(std::string("can't watch a fork (pidfd_open): ") + std::strerror(error));
  }
  std::array<pollfd, 2> waited{{{ended, POLLIN, 0}, {connection, POLLIN, 0}}};
  while (poll(waited.data(), waited.size(), -1) < 0 || waited[0].revents == 0) {
    unsigned char number = SIGKILL;
    const bool is_gone = read(connection, &number, 1) <= 0;
    kill(played, is_gone ? SIGKILL : number);
    if (is_gone) break;
  }
  int status = 0;
  waitpid(played, &status, 0);
  [[maybe_unused]] const ssize_t told = send(connection, &status, sizeof status, MSG_NOSIGNAL);
}

void serve_one(int connection) {
  std::signal(SIGCHLD, SIG_DFL);
  Request request = read_request(connection);
  const pid_t played = fork();
  if (played == 0) {
    close(connection);
    play(std::move(request));
  }
  for (const int stream : request.streams) close(stream);
  if (played > 0) attend(connection, played);
}

int listening(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int waiting = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(waiting, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(waiting, 64) != 0) {
    throw std::runtime_error(std::string(path) + ": " + std::strerror(errno));
  }
  return waiting;
}

/// Whether a fork's end can be watched here; some kernels and sandboxes have no pidfd_open.
void probe_watching() {
  const int own = ending_of(getpid());
  if (own < 0) throw std::runtime_error(std::string("can't watch forks (pidfd_open): ") + std::strerror(errno));
  close(own);
}

void serve(const char* path) {
  probe_watching();
  const int waiting = listening(path);
  std::signal(SIGCHLD, SIG_IGN);  // nobody waits for those that attend
  std::puts("ready");
  std::fflush(stdout);
  std::array<pollfd, 2> waited{{{STDIN_FILENO, POLLIN, 0}, {waiting, POLLIN, 0}}};
  while (poll(waited.data(), waited.size(), -1) >= 0 && waited[0].revents == 0) {
    const int connection = accept4(waiting, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    if (fork() == 0) {
      close(waiting);
      serve_one(connection);
      _exit(0);
    }
    close(connection);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("usage: train_forks SOCKET");
  serve(argv[1]);
  _exit(0);
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_forks: %s\n", error.what());
  _exit(1);
}
