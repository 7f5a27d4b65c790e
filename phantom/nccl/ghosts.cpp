#include "phantom/nccl/ghosts.h"

#include <cstring>
#include <vector>

#include "phantom/core/record.h"
#include "phantom/nccl/buffers.h"
#include "phantom/nccl/communicator.h"

namespace vramfit::phantom {

namespace {

// What a rank that does not run was taken to have sent: a value, but nobody's.
Knowledge invented(const Operation& operation, const Knowledge& of) {
  return of & Knowledge{.invented_by = inventor(operation.text())};
}

// What another root would send is what the buffer holds already.
void keep(const Operation& operation) {
  const std::int64_t bytes = operation.receive_bytes();
  wrote(operation.receive, bytes, invented(operation, knowledge_at(operation.receive, bytes)));
}

void reduce_like_own(const Operation& operation) {
  const int rank = operation.communicator->rank();
  if (operation.receive_bytes() == 0) return;
  const Contribution own = contribution(operation, rank);
  std::byte* out = view(operation.receive, operation.part_bytes());
  reduce_equal(operation.reduction, {own.data.data(), nullptr}, operation.communicator->ranks(), operation.count, out);
  wrote(operation.receive, operation.part_bytes(), invented(operation, own.knowledge));
}

// What rank `sender` has for this rank is what this rank has for itself.
void place_own(const Operation& operation) {
  if (operation.receive_bytes() == 0) return;
  const int rank = operation.communicator->rank();
  const Contribution own = contribution(operation, rank);
  Contribution like_own = own;
  like_own.knowledge = invented(operation, own.knowledge);
  for (int sender = 0; sender < operation.communicator->ranks(); ++sender) {
    if (sender == rank || is_sent(operation, sender, rank)) place(operation, sender, sender == rank ? own : like_own);
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
  if (sent == nullptr) return keep(operation);
  Contribution part = contribution(*sent, sent->root);
  const bool is_own = operation.root == operation.communicator->rank() && sent->root == operation.root;
  if (!is_own) part.knowledge = invented(operation, part.knowledge);
  place(operation, operation.root, part);
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
    case Call::broadcast:
    case Call::scatter:
      if (is_root) {
        place(operation, operation.root, contribution(operation, operation.root));
      } else {
        keep(operation);
      }
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
