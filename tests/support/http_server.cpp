#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>

namespace vramfit::testing {
namespace {

constexpr int kPollMilliseconds = 20;
constexpr std::size_t kLongestRequest = 65536;

bool is_readable(int descriptor) {
  pollfd waiting{descriptor, POLLIN, 0};
  return poll(&waiting, 1, kPollMilliseconds) > 0;
}

std::string receive(int connection, const std::atomic<bool>& ending) {
  std::string text;
  while (text.find("\r\n\r\n") == std::string::npos && text.size() < kLongestRequest && !ending) {
    if (!is_readable(connection)) continue;
    std::array<char, 4096> buffer{};
    const ssize_t got = recv(connection, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

void send_all(int connection, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

}  // namespace

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool is_listening = bind(listener_, generic, length) == 0 && listen(listener_, 16) == 0 &&
                            getsockname(listener_, generic, &length) == 0;
  if (!is_listening) throw std::runtime_error("no port on loopback");
  port_ = ntohs(address.sin_port);
  thread_ = std::jthread([this] { serve(); });
}

HttpServer::~HttpServer() {
  ending_ = true;
  thread_.join();
  close(listener_);
}

std::string HttpServer::address() const { return "http://127.0.0.1:" + std::to_string(port_); }

std::vector<WebRequest> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HttpServer::serve() {
  while (!ending_) {
    if (!is_readable(listener_)) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    answer(connection);
    close(connection);
  }
}

void HttpServer::answer(int connection) {
  WebRequest request{"", receive(connection, ending_)};
  const std::size_t begin = request.text.find(' '), end = request.text.find(' ', begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return;
  request.path = request.text.substr(begin + 1, end - begin - 1);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  const WebReply reply = handler_(request);
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\nConnection: close\r\n";
  for (const std::string& header : reply.headers) text += header + "\r\n";
  text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n\r\n";
  send_all(connection, text);
  // A stalled client hangs up when it has waited long enough.
  while (reply.stall && !ending_ && !is_readable(connection)) {
  }
  if (!reply.stall)
    send_all(connection, std::string_view(reply.body).substr(0, reply.body.size() - reply.missing_bytes));
}

bool any_holds(const std::vector<WebRequest>& requests, const std::string& part) {
  return std::any_of(requests.begin(), requests.end(),
                     [&](const WebRequest& request) { return request.text.find(part) != std::string::npos; });
}

WebReply ranged(const WebRequest& request, const std::string& whole) {
  const std::size_t at = request.text.find("Range: bytes=");
  if (at == std::string::npos) return {200, {}, whole};
  std::size_t used = 0;
  const std::size_t first = std::stoul(request.text.substr(at + 13), &used);
  const std::size_t last = std::min(std::stoul(request.text.substr(at + 13 + used + 1)), whole.size() - 1);
  return {206,
          {"Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" +
           std::to_string(whole.size())},
          whole.substr(first, last - first + 1)};
}

}  // namespace vramfit::testing
