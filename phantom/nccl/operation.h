// One collective, send or receive as a rank called it: who gets which of its bytes, and what becomes of theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "phantom/core/contents.h"
#include "phantom/core/streams.h"
#include "phantom/nccl/reduce.h"

namespace vramfit::phantom {

class Communicator;

enum class Call : std::int32_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};

const char* call_name(Call call);

struct Operation {
  Call call{};
  const void* send = nullptr;
  void* receive = nullptr;
  std::int64_t count = 0;        // as the call takes it: of one rank's part where ranks have parts
  Reduction reduction;           // its type is the call's; the rest counts for reductions only
  std::vector<std::byte> scale;  // one element that this rank's values are multiplied by first; empty for none
  Knowledge scale_knowledge;
  int root = 0;  // or the peer
  Communicator* communicator = nullptr;
  Stream* stream = nullptr;

  bool is_pair() const { return call == Call::send || call == Call::receive; }
  std::int64_t part_bytes() const { return count * element_bytes(reduction.type); }
  /// Bytes of all ranks' parts, by which ranks agree on whether the data is moved.
  std::int64_t total_bytes() const;
  /// What this rank reads and writes; 0 where the call ignores the pointer.
  std::int64_t send_bytes() const;
  std::int64_t receive_bytes() const;
  /// "all_reduce of 4 float32"
  std::string text() const;
};

/// Whether the communicator's ranks `sender` and `receiver` (not the same) exchange a message in this call.
bool is_sent(const Operation& operation, int sender, int receiver);
/// Where in the sender's buffer the part for this receiver begins.
std::int64_t send_offset(const Operation& operation, int receiver);
/// Where in the receiver's buffer the sender's part goes. Not for reductions.
std::int64_t receive_offset(const Operation& operation, int sender);
bool is_reduction(Call call);

}  // namespace vramfit::phantom
