// What this process plays: the card, how many, and the settings. Read once from the session folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/address_space.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// What host code can ask about a card. Facts that follow from the compute capability are in architecture.h.
struct CardFacts {
  std::string catalog_name;  // "H100-80GB"
  std::string name;          // as CUDA reports it
  int major = 8, minor = 0;
  int sm_count = 108;
  std::int64_t memory_bytes = 0;   // what torch reports as total memory
  std::int64_t context_bytes = 0;  // taken by each process that uses the card
  std::int64_t nccl_bytes = 0;     // taken by a communicator
};

struct Settings {
  AddressOrder addresses = AddressOrder::ascending;
  std::uint64_t address_seed = 0;
  bool late_completion = false;  // events complete some calls after they were recorded
  std::uint64_t completion_seed = 0;
  std::int64_t real_bytes = 1 << 20;  // copies, fills and collectives up to this size move data
  bool trace = false;
  bool computes_values = true;     // of small tensors, in programs that use torch (values/)
  bool worst_routing = false;      // all rows of unknown scores choose the same entries; otherwise they take turns
  std::int64_t routing_seed = -1;  // or, from 0 on, draw them
  std::int64_t integer_bytes = 64 << 20, float_bytes = 4096;  // largest tensors that are computed
  double selected_share = 1;                                  // of an unknown mask
  bool bounds_workspaces = false;                             // of unknown size take their bound, not 0
  std::chrono::milliseconds nccl_timeout{600'000};            // how long a small collective waits for another process
};

struct Session {
  std::string folder;
  CardFacts card;
  int nodes = 1, cards_per_node = 1;
  std::optional<int> played_rank;  // the others are ghosts
  Settings settings;
  int world() const { return nodes * cards_per_node; }
};

/// Reads $VRAMFIT_PHANTOM/session.json at the first call. A folder that is missing or wrong ends the process with one
/// line on stderr and exit code 2: a stand-in must never answer with made-up cards.
PHANTOM_CORE const Session& session();

}  // namespace vramfit::phantom
