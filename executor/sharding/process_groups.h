// Where a rank's collectives come from: rendezvous through a store, then one group an axis of the mesh.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "estimator/device.h"
#include "executor/sharding/collectives.h"

namespace vramfit {

/// A process's place in the job, as torchrun and Slurm give it.
struct RankPlace {
  int rank = 0, world = 1, local_rank = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  int listen_descriptor = -1;  // rank 0: a socket that listens there already, handed down by the launcher
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (or SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID);
/// one rank without them. VRAMFIT_LISTEN_FD is what `vramfit run` hands down. Throws InputError naming the variable
/// that is missing or wrong.
RankPlace rank_place_from_environment();

/// What the ranks of one job must agree on before the first collective.
struct GroupOptions {
  RankPlace place;
  DeviceKind device = DeviceKind::cpu;
  std::int64_t shard_ranks = 1;    // neighbours in rank order hold the shards of one copy
  std::int64_t reshard_ranks = 0;  // of them, neighbours that keep slices of one copy after forward; 0: none do
  std::string agreement;         // plan, flags, program: a hash; ranks that differ are refused by name
  std::chrono::milliseconds timeout{600000};
  bool ghosts = false;  // this rank is played alone on phantom GPUs: nobody is there to meet
};

/// The groups a rank belongs to, and small messages between ranks outside of collectives.
struct ProcessGroups {
  virtual ~ProcessGroups() = default;
  virtual Collectives& world() = 0;
  virtual Collectives& shard() = 0;
  virtual Collectives& replicate() = 0;
  /// The rank's group of --reshard N; the shard group without one.
  virtual Collectives& reshard() = 0;
  /// Gives `text` to rank 0, which receives every rank's, in rank order; others receive nothing. A rank played alone
  /// receives its own.
  virtual std::vector<std::string> gather_texts(const std::string& topic, const std::string& text) = 0;
  /// Every rank's text, in rank order, to all; a topic is used once.
  virtual std::vector<std::string> share_texts(const std::string& topic, const std::string& text) = 0;
  /// Leaves a text under a topic, and looks whether one is there; neither waits. From any thread.
  virtual void post(const std::string& topic, const std::string& text) = 0;
  virtual std::optional<std::string> posted(const std::string& topic) = 0;
};

/// Connects to the other ranks. Throws FaultError: the port is taken, a rank did not come, a rank runs something else.
std::unique_ptr<ProcessGroups> connect(const GroupOptions& options);

/// Collectives of a group of one: nothing to do.
std::unique_ptr<Collectives> local_collectives();

/// Runs `body` once a rank, ranks as threads over Gloo in this process, and rethrows the first error. Tests only:
/// values are those of processes, byte counts are not.
void spawn_ranks(int world, std::int64_t shard_ranks, const std::function<void(ProcessGroups&)>& body,
                 std::int64_t reshard_ranks = 0);

}  // namespace vramfit
