#include "phantom/nccl/operation.h"

#include <fmt/format.h>

#include "phantom/nccl/communicator.h"

namespace vramfit::phantom {

const char* call_name(Call call) {
  switch (call) {
    case Call::all_reduce:
      return "all_reduce";
    case Call::reduce:
      return "reduce";
    case Call::broadcast:
      return "broadcast";
    case Call::all_gather:
      return "all_gather";
    case Call::reduce_scatter:
      return "reduce_scatter";
    case Call::all_to_all:
      return "all_to_all";
    case Call::gather:
      return "gather";
    case Call::scatter:
      return "scatter";
    case Call::send:
      return "send";
    case Call::receive:
      return "receive";
  }
  return "unknown call";
}

bool is_reduction(Call call) {
  return call == Call::all_reduce || call == Call::reduce || call == Call::reduce_scatter;
}

namespace {

// Calls whose ranks have a part of the buffer each, on the sending or the receiving side.
bool has_parts(Call call) {
  return call == Call::all_gather || call == Call::reduce_scatter || call == Call::all_to_all || call == Call::gather ||
         call == Call::scatter;
}

}  // namespace

std::int64_t Operation::total_bytes() const { return part_bytes() * (has_parts(call) ? communicator->ranks() : 1); }

std::int64_t Operation::send_bytes() const {
  const bool is_root = communicator->rank() == root;
  switch (call) {
    case Call::receive:
      return 0;
    case Call::broadcast:
      return is_root ? part_bytes() : 0;
    case Call::scatter:
      return is_root ? total_bytes() : 0;
    case Call::reduce_scatter:
    case Call::all_to_all:
      return total_bytes();
    case Call::all_reduce:
    case Call::reduce:
    case Call::all_gather:
    case Call::gather:
    case Call::send:
      break;
  }
  return part_bytes();
}

std::int64_t Operation::receive_bytes() const {
  const bool is_root = communicator->rank() == root;
  switch (call) {
    case Call::send:
      return 0;
    case Call::reduce:
      return is_root ? part_bytes() : 0;
    case Call::gather:
      return is_root ? total_bytes() : 0;
    case Call::all_gather:
    case Call::all_to_all:
      return total_bytes();
    case Call::all_reduce:
    case Call::broadcast:
    case Call::reduce_scatter:
    case Call::scatter:
    case Call::receive:
      break;
  }
  return part_bytes();
}

std::string Operation::text() const {
  return fmt::format("{} of {} {}", call_name(call), count, type_name(reduction.type));
}

bool is_sent(const Operation& operation, int sender, int receiver) {
  switch (operation.call) {
    case Call::reduce:
    case Call::gather:
      return receiver == operation.root;
    case Call::broadcast:
    case Call::scatter:
      return sender == operation.root;
    case Call::send:
      return receiver == operation.root;
    case Call::receive:
      return sender == operation.root;
    case Call::all_reduce:
    case Call::all_gather:
    case Call::reduce_scatter:
    case Call::all_to_all:
      break;
  }
  return true;
}

std::int64_t send_offset(const Operation& operation, int receiver) {
  const bool by_receiver =
      operation.call == Call::reduce_scatter || operation.call == Call::all_to_all || operation.call == Call::scatter;
  return by_receiver ? receiver * operation.part_bytes() : 0;
}

std::int64_t receive_offset(const Operation& operation, int sender) {
  const bool by_sender =
      operation.call == Call::all_gather || operation.call == Call::all_to_all || operation.call == Call::gather;
  return by_sender ? sender * operation.part_bytes() : 0;
}

}  // namespace vramfit::phantom
