#include "executor/place/own_address.h"

#include <fmt/format.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"
#include "executor/place/rank_place.h"

namespace vramfit {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int status = getaddrinfo(host.c_str(), "9", &hints, &list);
  if (status != 0) {
    throw FaultError(fmt::format("MASTER_ADDR {}: {}", printable(host, 80), gai_strerror(status)));
  }
  return {list, &freeaddrinfo};
}

std::string text_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int status = getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? text.data() : "";
}

}  // namespace

std::string source_address(const std::string& host) {
  const Addresses list = resolve(host);
  const int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* generic = reinterpret_cast<sockaddr*>(&own);
  const bool known =
      fd >= 0 && ::connect(fd, list->ai_addr, list->ai_addrlen) == 0 && getsockname(fd, generic, &length) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!known) {
    throw FaultError(fmt::format("no route to {}: {}", printable(host, 80), system_reason(error)));
  }
  return text_of(generic, length);
}

bool resolves_to_loopback(const std::string& host) {
  try {
    const Addresses list = resolve(host);
    return is_loopback(text_of(list->ai_addr, list->ai_addrlen));
  } catch (const FaultError&) {
    return false;
  }
}

std::vector<std::string> interfaces_named(const std::string& variable, const std::string& list) {
  std::vector<std::string> names;
  std::string rest = list;
  while (true) {
    const std::size_t comma = rest.find(',');
    names.push_back(rest.substr(0, comma));
    if (names.back().size() >= IF_NAMESIZE || if_nametoindex(names.back().c_str()) == 0) {
      throw InputError(
          fmt::format("environment: {}={}: this machine has no interface \"{}\"; `ip link` lists them, and "
                      "unset, the route to MASTER_ADDR decides",
                      variable, printable(list, 80), printable(names.back(), 40)));
    }
    if (comma == std::string::npos) return names;
    rest.erase(0, comma + 1);
  }
}

std::string node_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  const std::string text = printable(name.data(), 64);
  return text.substr(0, text.find('.'));
}

}  // namespace vramfit
