// Stands for vramfit-train beside a copy of vramfit: asks train_forks, at $VRAMFIT_TRAIN_FORKS, to play it with the
// same arguments, environment, folder and streams, and ends as the fork did.
#include <sys/resource.h>
#include <sys/socket.h>
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
#include <filesystem>
#include <string>

namespace {

int connection = -1;

void pass_on(int number) {
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const ssize_t told = write(connection, &byte, 1);
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  _exit(127);
}

void connect_to(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("train_client");
}

std::string request(int argc, char** argv) {
  std::string text = std::to_string(argc) + '\0';
  for (int i = 0; i < argc; ++i) text += std::string(argv[i]) + '\0';
  text += std::filesystem::current_path().string() + '\0';
  for (char** entry = environ; *entry != nullptr; ++entry) text += std::string(*entry) + '\0';
  return text;
}

void send_with_streams(const std::string& text) {
  std::uint64_t length = text.size();
  iovec part{&length, sizeof length};
  const std::array<int, 3> streams{STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof streams)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof streams);
  std::memcpy(CMSG_DATA(header), streams.data(), sizeof streams);
  if (sendmsg(connection, &message, MSG_NOSIGNAL) < 0) fail("train_client");
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0) fail("train_client");
    sent += static_cast<std::size_t>(count);
  }
}

[[noreturn]] void end_as(int status) {
  if (!WIFSIGNALED(status)) _exit(WEXITSTATUS(status));
  const rlimit none{};
  setrlimit(RLIMIT_CORE, &none);
  std::signal(WTERMSIG(status), SIG_DFL);
  std::raise(WTERMSIG(status));
  _exit(128 + WTERMSIG(status));
}

}  // namespace

int main(int argc, char** argv) {
  const char* path = std::getenv("VRAMFIT_TRAIN_FORKS");
  connect_to(path == nullptr ? "" : path);
  // What pass_on writes follows the request: signals wait until it is sent.
  sigset_t passed{};
  sigset_t before{};
  sigemptyset(&passed);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&passed, number);
  sigprocmask(SIG_BLOCK, &passed, &before);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) std::signal(number, pass_on);
  send_with_streams(request(argc, argv));
  sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  ssize_t count = 0;
  do count = recv(connection, &status, sizeof status, MSG_WAITALL);
  while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof status)) fail("train_client: train_forks is gone");
  end_as(status);
}
