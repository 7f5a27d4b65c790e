#include "phantom/nccl/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "phantom/core/session.h"
#include "phantom/nccl/communicator.h"

namespace vramfit::phantom {

namespace {

Lane lane_of(const Operation& operation) { return operation.is_pair() ? Lane::pair : Lane::collective; }

Header header_of(const Operation& operation, bool certain) {
  Header header;
  header.call = static_cast<std::int32_t>(operation.call == Call::receive ? Call::send : operation.call);
  header.type = static_cast<std::int32_t>(operation.reduction.type);
  header.combine = is_reduction(operation.call) ? static_cast<std::int32_t>(operation.reduction.combine) : 0;
  header.root = operation.is_pair() ? 0 : operation.root;
  header.count = operation.count;
  header.certain = certain ? 1 : 0;
  return header;
}

// A message can say anything; only what names a call is shown as one.
std::string text_of(const Header& header) {
  const auto call = static_cast<Call>(header.call);
  return fmt::format("{} of {} {} (root {}, reduction {})", call_name(call), header.count,
                     type_name(static_cast<ncclDataType_t>(header.type)), header.root, header.combine);
}

// A receive may read other types than were sent, as long as the bytes are as many.
bool is_same_call(const Operation& operation, const Header& theirs) {
  const Header mine = header_of(operation, true);
  if (theirs.call != mine.call || theirs.data_bytes != operation.part_bytes()) return false;
  if (operation.is_pair()) return true;
  return theirs.type == mine.type && theirs.combine == mine.combine && theirs.root == mine.root &&
         theirs.count == mine.count;
}

}  // namespace

Exchange::Exchange(Operation operation) : operation_(std::move(operation)) {
  Communicator& communicator = *operation_.communicator;
  if (operation_.call == Call::send) {
    sent_number_ = communicator.next_sent(operation_.root);
  } else if (operation_.call == Call::receive) {
    received_number_ = communicator.next_received(operation_.root);
  } else {
    sent_number_ = received_number_ = communicator.next_collective();
  }
  const int rank = communicator.rank();
  if (operation_.call == Call::receive) {
    missing_ = {operation_.root};
  } else {
    send_parts();
    if (operation_.call == Call::send) {
      finished_ = true;
      return;
    }
    for (int sender = 0; sender < communicator.ranks(); ++sender) {
      if (sender != rank && is_sent(operation_, sender, rank)) missing_.push_back(sender);
    }
  }
  finished_ = operation_.receive_bytes() == 0;
}

void Exchange::send_parts() {
  Communicator& communicator = *operation_.communicator;
  const int rank = communicator.rank();
  std::vector<int> receivers;
  if (operation_.call == Call::send) {
    receivers = {operation_.root};
  } else {
    for (int receiver = 0; receiver < communicator.ranks(); ++receiver) {
      if (receiver != rank && is_sent(operation_, rank, receiver)) receivers.push_back(receiver);
    }
    keeps_own_ = operation_.receive_bytes() > 0 && is_sent(operation_, rank, rank);
    if (keeps_own_) own_ = contribution(operation_, rank);
  }
  const Lane lane = lane_of(operation_);
  if (!receivers.empty() && send_offset(operation_, 1) == 0) {
    const Contribution part = contribution(operation_, receivers.front());
    communicator.mailbox()->post(lane, sent_number_, header_of(operation_, part.knowledge.is_certain()), part.data,
                                 receivers);
    return;
  }
  for (const int receiver : receivers) {
    const Contribution part = contribution(operation_, receiver);
    communicator.mailbox()->post(lane, sent_number_, header_of(operation_, part.knowledge.is_certain()), part.data,
                                 {&receiver, 1});
  }
}

void Exchange::accept(int sender, Message message) {
  if (!is_same_call(operation_, message.header)) {
    throw InputError(fmt::format("rank {} of {} called {} where this rank called {}", sender,
                                 operation_.communicator->ranks(), text_of(message.header),
                                 text_of(header_of(operation_, true))));
  }
  arrived_.emplace_back(sender, Contribution{std::move(message.data), {.is_known = message.header.certain != 0}});
}

void Exchange::take_what_came() {
  Mailbox& mailbox = *operation_.communicator->mailbox();
  std::erase_if(missing_, [&](int sender) {
    auto message = mailbox.try_take(lane_of(operation_), received_number_, sender);
    if (message) accept(sender, std::move(*message));
    return message.has_value();
  });
}

bool Exchange::go_on(bool wait, bool deliver_result) {
  if (finished_) return true;
  Communicator& communicator = *operation_.communicator;
  take_what_came();
  while (wait && !missing_.empty()) {
    const int sender = missing_.front();
    accept(sender, communicator.mailbox()->take(lane_of(operation_), received_number_, sender,
                                                session().settings.nccl_timeout, communicator.aborted()));
    missing_.erase(missing_.begin());
  }
  if (!missing_.empty()) return false;
  finished_ = true;
  if (deliver_result) deliver();
  return true;
}

void Exchange::deliver() {
  const int rank = operation_.communicator->rank();
  if (keeps_own_) arrived_.emplace_back(rank, std::move(own_));
  if (!is_reduction(operation_.call)) {
    for (const auto& [sender, part] : arrived_) place(operation_, sender, part);
    return;
  }
  std::ranges::sort(arrived_, {}, [](const auto& entry) { return entry.first; });
  std::vector<Part> parts;
  Knowledge knowledge;
  for (const auto& [sender, part] : arrived_) {
    parts.push_back({part.data.data(), nullptr});
    knowledge = knowledge & part.knowledge;
  }
  reduce(operation_.reduction, parts, operation_.count, view(operation_.receive, operation_.part_bytes()));
  wrote(operation_.receive, operation_.part_bytes(), knowledge);
}

}  // namespace vramfit::phantom
