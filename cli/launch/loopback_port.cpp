#include "cli/launch/loopback_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "estimator/field_text.h"
#include "model_specs/error.h"

namespace vramfit {

namespace {
constexpr int kBacklog = 1024;
}

LoopbackPort::LoopbackPort(int wanted) : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const auto fail = [&](const std::string& what) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw FaultError(what + ": " + std::generic_category().message(error));
  };
  if (descriptor_ < 0) fail("opening a socket");
  const int on = 1;
  setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(wanted));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor_, generic, sizeof address) != 0 || listen(descriptor_, kBacklog) != 0) {
    fail(fmt::format("port {} on 127.0.0.1 can't be used; unset MASTER_PORT or set it to a free one", wanted));
  }
  socklen_t length = sizeof address;
  if (getsockname(descriptor_, generic, &length) != 0) fail("reading the port");
  number_ = ntohs(address.sin_port);
}

LoopbackPort::~LoopbackPort() { close(descriptor_); }

int wanted_port() {
  const char* text = std::getenv("MASTER_PORT");  // NOLINT(concurrency-mt-unsafe): no other thread yet
  if (text == nullptr || *text == '\0') return 0;
  try {
    return static_cast<int>(whole_number(text, 1, 65535));
  } catch (const InputError& error) {
    throw InputError(std::string("environment: MASTER_PORT: ") + error.what());
  }
}

}  // namespace vramfit
