#include "cli/launch/loopback_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/text/system_reason.h"

namespace vramfit {

namespace {
constexpr int kBacklog = 1024;
}

LoopbackPort::LoopbackPort() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const auto fail = [&](const std::string& what) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw FaultError(what + ": " + system_reason(error));
  };
  if (descriptor_ < 0) fail("opening a socket");
  const int on = 1;
  setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = 0;  // any that is free
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor_, generic, sizeof address) != 0 || listen(descriptor_, kBacklog) != 0) {
    fail("listening on 127.0.0.1");
  }
  socklen_t length = sizeof address;
  if (getsockname(descriptor_, generic, &length) != 0) fail("reading the port");
  number_ = ntohs(address.sin_port);
}

LoopbackPort::~LoopbackPort() { close(descriptor_); }

}  // namespace vramfit
