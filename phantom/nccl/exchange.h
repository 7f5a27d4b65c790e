// A small operation between processes: what this rank sends is sent at once, what it gets is waited for.
#pragma once

#include <memory>
#include <vector>

#include "phantom/nccl/buffers.h"
#include "phantom/nccl/mailbox.h"
#include "phantom/nccl/operation.h"

namespace vramfit::phantom {

class Exchange {
 public:
  /// Sends this rank's parts, and keeps a copy of what it needs itself. Throws FaultError and InputError.
  explicit Exchange(Operation operation);

  const Operation& operation() const { return operation_; }
  bool is_finished() const { return finished_; }
  /// Takes what has arrived, with `wait` all that will; true when all is there, and, with `deliver`, written to the
  /// receive buffer. Throws FaultError naming who is missing, InputError when others made another call.
  bool go_on(bool wait, bool deliver);

 private:
  void send_parts();
  void take_what_came();
  void accept(int sender, Message message);
  void deliver();

  Operation operation_;
  std::uint64_t sent_number_ = 0, received_number_ = 0;
  Contribution own_;  // this rank's part for itself
  bool keeps_own_ = false;
  std::vector<int> missing_;                           // senders whose message has not come
  std::vector<std::pair<int, Contribution>> arrived_;  // by sender
  bool finished_ = false;
};

}  // namespace vramfit::phantom
