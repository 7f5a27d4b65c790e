// The store at which a rank played alone meets its ghosts: a torch TCPStore server on loopback.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/launch/loopback_port.h"
#include "cli/rehearse/ghost_keys.h"

namespace vramfit {

/// What the ghosts did, for the report.
struct GhostReport {
  std::int64_t answers = 0;                 // that ghosts gave in the played rank's stead
  std::vector<std::string> keys;            // some of the keys
  std::vector<std::string> never_set_keys;  // that the played rank gave up waiting for
  std::vector<std::string> refused;         // connections that spoke something else, and what
};

/// Serves from construction to destruction. Any process of the machine can connect, as with torch's own store, but
/// nobody else: it listens on 127.0.0.1.
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
