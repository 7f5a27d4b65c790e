// The store that a rank running alone connects to: a torch TCPStore server on loopback that answers for its ghosts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/launch/loopback_port.h"
#include "cli/rehearse/ghosts/ghost_keys.h"

namespace vramfit {

/// What the ghosts did, for the report.
struct GhostReport {
  std::int64_t answers = 0;                 // given on behalf of ghosts
  std::vector<std::string> keys;            // some of the keys
  std::vector<std::string> never_set_keys;  // that the played rank gave up waiting for
  std::vector<std::string> refused;         // connections with another protocol, and what they sent
};

/// Serves from construction to destruction. It listens on 127.0.0.1, so any process on this machine can connect (as
/// with torch's own store) but no other machine.
class GhostStore {
 public:
  /// Throws FaultError when no port can be had.
  explicit GhostStore(GhostWorld world);
  ~GhostStore();
  GhostStore(const GhostStore&) = delete;
  GhostStore& operator=(const GhostStore&) = delete;
  GhostStore(GhostStore&&) = delete;
  GhostStore& operator=(GhostStore&&) = delete;

  int port() const { return port_.number(); }
  GhostReport report() const;

 private:
  class Server;

  LoopbackPort port_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace vramfit
