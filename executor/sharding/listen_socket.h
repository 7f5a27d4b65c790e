// A listening socket bound to one address. LibTorch's own TCPStore would listen on every interface.
#pragma once

#include <string>

namespace vramfit {

/// Returns the descriptor; throws FaultError "port N on ADDRESS is taken ..." or for an address that isn't ours.
int listen_on(const std::string& address, int port);

}  // namespace vramfit
