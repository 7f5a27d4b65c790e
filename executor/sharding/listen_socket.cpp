#include "executor/sharding/listen_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"

namespace vramfit {

namespace {

constexpr int kBacklog = 2048;  // one connection a rank, all at once

}  // namespace

int listen_on(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int status = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0) {
    throw FaultError(fmt::format("MASTER_ADDR {}: {}", printable(address, 80), gai_strerror(status)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw FaultError("socket: " + system_reason(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error == EADDRINUSE) {
    throw FaultError(fmt::format("port {} on {} is taken by another program; set MASTER_PORT to a free one", port,
                                 printable(address, 80)));
  }
  throw FaultError(fmt::format("listening on {} port {}: {}", printable(address, 80), port, system_reason(error)));
}

}  // namespace vramfit
