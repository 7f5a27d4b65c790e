// What rendezvous needs from each communication library: collectives over a store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "executor/sharding/collectives.h"
#include "executor/sharding/meeting.h"

namespace vramfit {

/// A rank's part of one group.
struct GroupPlace {
  std::string name;  // "shard group 0", for messages
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{};
  std::string address;                  // of this machine, to communicate over; Gloo only
  std::vector<std::string> interfaces;  // instead of the address; Gloo only
  int local_device = 0;                 // CUDA device; NCCL only
};

/// c10d's flight recorder keeps the last 2000 collectives of the process in a structure that its groups change from
/// several threads without a lock (seen to crash with ranks as threads, LibTorch 2.11). Off unless asked for, by the
/// environment: to be called before the first thread, as one that reads a variable meanwhile may read freed memory.
void turn_off_flight_recorder();

/// The store in which the ranks of a meeting leave values for each other.
c10::intrusive_ptr<c10d::Store> store_of(Meeting& meeting);

/// Keys that other ranks would have set exist as soon as they are asked for: a rank that runs alone never waits.
c10::intrusive_ptr<c10d::Store> ghost_store();

std::unique_ptr<Collectives> gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store, const GroupPlace& place);
/// All ranks of a mesh with two axes, one axis after the other: a group of its own would cost another communicator's
/// memory on each card. Sums and barriers only. Both outlive it.
std::unique_ptr<Collectives> mesh_collectives(Collectives& shard, Collectives& replicate, int rank);

std::unique_ptr<Collectives> nccl_collectives(const c10::intrusive_ptr<c10d::Store>& store, const GroupPlace& place);

}  // namespace vramfit
