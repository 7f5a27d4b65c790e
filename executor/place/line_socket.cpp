#include "executor/place/line_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"

namespace vramfit {

namespace {

constexpr std::size_t kLongestLine = 4096;

void set(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof value);
}

void set_send_timeout(int descriptor, int seconds) {
  const timeval time{.tv_sec = seconds, .tv_usec = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);  // connect(2) as well
}

}  // namespace

LineSocket::LineSocket(int descriptor) : descriptor_(descriptor) {
  set_send_timeout(descriptor, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
}

LineSocket::~LineSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

LineSocket::LineSocket(LineSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), partial_(std::move(other.partial_)) {}

LineSocket& LineSocket::operator=(LineSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(partial_, other.partial_);
  return *this;
}

bool LineSocket::send(const std::string& line) const {
  const std::string text = line.substr(0, kLongestLine - 1) + "\n";
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

std::vector<std::string> LineSocket::read_lines(bool& open) {
  std::array<char, 4096> buffer{};
  open = true;
  while (open) {
    const ssize_t count = recv(descriptor_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    open = count > 0 && partial_.size() < 16 * kLongestLine;
    if (count > 0) partial_.append(buffer.data(), static_cast<std::size_t>(count));
  }
  std::vector<std::string> lines;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
    lines.push_back(partial_.substr(0, end));
    partial_.erase(0, end + 1);
  }
  open = open && partial_.size() <= kLongestLine;
  return lines;
}

LineSocket connect_to(const std::string& host, int port, int seconds) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  std::string why = "no address";
  if (const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); status != 0) {
    throw FaultError(fmt::format("{}: {}", printable(host, 80), gai_strerror(status)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    const int descriptor = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    set_send_timeout(descriptor, seconds);
    if (::connect(descriptor, one->ai_addr, one->ai_addrlen) == 0) return LineSocket(descriptor);
    why = system_reason(errno == EINPROGRESS ? ETIMEDOUT : errno);
    close(descriptor);
  }
  throw FaultError(fmt::format("{} port {}: {}", printable(host, 80), port, why));
}

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace vramfit
