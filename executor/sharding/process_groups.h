// Creates a rank's collectives: rendezvous through a store, then one group per axis of the mesh.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/place/rank_place.h"
#include "executor/sharding/collectives.h"
#include "job/cluster/device.h"

namespace vramfit {

struct Meeting;
class TrainObserver;

/// What the ranks of one job must agree on before the first collective.
struct GroupOptions {
  RankPlace place;
  DeviceKind device = DeviceKind::cpu;
  std::int64_t shard_ranks = 1;    // neighbours in rank order hold the shards of one copy
  std::int64_t reshard_ranks = 0;  // of them, neighbours that keep slices of one copy after forward; 0: none do
  std::string agreement;           // executor/run/agreement.h; ranks that differ are refused by name
  std::chrono::milliseconds timeout{600000};
  Meeting* meeting = nullptr;         // with the other ranks, where there are any
  bool ghosts = false;                // this rank runs alone on phantom GPUs: there are no ranks to meet
  TrainObserver* observer = nullptr;  // told about collectives; may be null
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

/// Agrees with the other ranks and makes the groups. Throws PeerLost (a rank did not come), InputError (a rank runs
/// something else).
std::unique_ptr<ProcessGroups> connect(const GroupOptions& options);

/// Collectives of a group of one, which do nothing.
std::unique_ptr<Collectives> local_collectives();

/// Runs `body` once per rank, with ranks as threads over Gloo in this process, and rethrows the first error. Tests
/// only: values are those of processes, byte counts are not. `agreement`: of each rank; none: all agree.
void spawn_ranks(int world, std::int64_t shard_ranks, const std::function<void(ProcessGroups&)>& body,
                 std::int64_t reshard_ranks = 0, const std::function<std::string(int rank)>& agreement = {});

}  // namespace vramfit
