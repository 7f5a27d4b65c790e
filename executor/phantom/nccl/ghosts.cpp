#include "executor/phantom/nccl/ghosts.h"

#include <cstring>
#include <vector>

#include "executor/phantom/core/record.h"
#include "executor/phantom/nccl/buffers.h"
#include "executor/phantom/nccl/communicator.h"

namespace vramfit::phantom {

namespace {

void reduce_like_own(const Operation& operation) {
  const int rank = operation.communicator->rank();
  if (operation.receive_bytes() == 0) return;
  const Contribution own = contribution(operation, rank);
  std::byte* out = view(operation.receive, operation.part_bytes());
  reduce_equal(operation.reduction, {own.data.data(), nullptr}, operation.communicator->ranks(), operation.count, out);
  wrote(operation.receive, operation.part_bytes(), own.certain);
}

// What rank `sender` has for this rank is what this rank has for itself.
void place_own(const Operation& operation) {
  if (operation.receive_bytes() == 0) return;
  const int rank = operation.communicator->rank();
  const Contribution own = contribution(operation, rank);
  for (int sender = 0; sender < operation.communicator->ranks(); ++sender) {
    if (sender == rank || is_sent(operation, sender, rank)) place(operation, sender, own);
  }
}

// Sent to itself, else the last message of this size in the group. What no message of the group says stays as it is.
const Operation* like_received(const Operation& operation, std::span<const Operation> group) {
  const Operation* found = nullptr;
  for (const Operation& other : group) {
    const bool fits = other.call == Call::send && other.communicator == operation.communicator &&
                      other.part_bytes() == operation.part_bytes();
    if (!fits) continue;
    found = &other;
    if (other.root == operation.communicator->rank()) break;
  }
  return found;
}

void receive_own(const Operation& operation, std::span<const Operation> group) {
  const Operation* sent = like_received(operation, group);
  if (sent != nullptr) place(operation, operation.root, contribution(*sent, sent->root));
}

}  // namespace

void answer_as_ghosts(const Operation& operation, std::span<const Operation> group) {
  const Communicator& communicator = *operation.communicator;
  const bool is_root = operation.root == communicator.rank();
  switch (operation.call) {
    case Call::all_reduce:
    case Call::reduce:
    case Call::reduce_scatter:
      reduce_like_own(operation);
      break;
    case Call::all_gather:
    case Call::all_to_all:
    case Call::gather:
      place_own(operation);
      break;
    // A root's own data is known; what another root would send is what the buffer holds already.
    case Call::broadcast:
    case Call::scatter:
      if (is_root) place(operation, operation.root, contribution(operation, operation.root));
      break;
    case Call::receive:
      receive_own(operation, group);
      break;
    case Call::send:
      break;
  }
  const bool root_sends = operation.call == Call::broadcast || operation.call == Call::scatter;
  const bool gets_nothing =
      operation.receive_bytes() == 0 || (root_sends && is_root) || (operation.call == Call::receive && is_root);
  if (!gets_nothing) count_ghost_answer(operation.text());
}

}  // namespace vramfit::phantom
