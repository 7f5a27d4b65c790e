// The addresses and interfaces of this machine that ranks communicate over.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

/// This machine's address on the route to `host`, as the kernel would choose it; nothing is sent. Throws FaultError
/// when the name has no address or there is no route to it.
std::string source_address(const std::string& host);

/// Whether `host`, as resolved on this machine, is reached without leaving it (Debian gives a machine's own name
/// 127.0.1.1). False for a name that can't be resolved.
bool resolves_to_loopback(const std::string& host);

/// The names in "eth0,eth1", the form of GLOO_SOCKET_IFNAME. Throws InputError naming one that this machine lacks.
std::vector<std::string> interfaces_named(const std::string& variable, const std::string& list);

/// This machine's name, for messages: printable, cut at the first dot.
std::string node_name();

}  // namespace vramfit
