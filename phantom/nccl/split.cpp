#include "phantom/nccl/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/numbers/mix_bits.h"
#include "phantom/core/record.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

constexpr std::int32_t kSplitCall = -1;  // no Call

std::vector<int> others_of(const Communicator& parent) {
  std::vector<int> others;
  for (int rank = 0; rank < parent.ranks(); ++rank) {
    if (rank != parent.rank()) others.push_back(rank);
  }
  return others;
}

struct Member {
  int key = 0, parent_rank = 0;
  auto operator<=>(const Member&) const = default;
};

std::vector<int>& told_ranks() {
  thread_local std::vector<int> ranks;
  return ranks;
}

// Who of the parent's ranks are in a split of which only this rank's color is known.
std::vector<Member> with_ghosts(const Communicator& parent, int key) {
  std::vector<Member> members;
  const std::vector<int>& told = told_ranks();
  if (std::ranges::find(told, parent.rank()) != told.end()) {
    for (const int rank : told)
      members.push_back({rank == parent.rank() ? key : static_cast<int>(members.size()), rank});
    return members;
  }
  for (int rank = 0; rank < parent.ranks(); ++rank) members.push_back({key, rank});
  count_ghost_answer("split of a communicator");
  return members;
}

std::string child_id(const Communicator& parent, std::string_view how) {
  const std::string text = fmt::format("{} {}", parent.id(), how);
  return digest(text);
}

}  // namespace

std::string digest(std::span<const char> bytes) { return fmt::format("{:016x}", fnv1a({bytes.data(), bytes.size()})); }

void tell_split_ranks(std::vector<int> ranks) { told_ranks() = std::move(ranks); }

std::uint64_t announce_split(Communicator& parent, int color, int key) {
  const std::uint64_t number = parent.next_split();
  if (parent.others() != Others::processes) return number;
  Header header;
  header.call = kSplitCall;
  header.root = color;
  header.count = key;
  parent.mailbox()->post(Lane::split, number, header, {}, others_of(parent));
  return number;
}

std::optional<Communicator::Place> split_place(Communicator& parent, std::uint64_t number, int color, int key) {
  std::vector<Member> members{{key, parent.rank()}};
  if (parent.others() == Others::processes) {
    for (const int other : others_of(parent)) {
      const Message message =
          parent.mailbox()->take(Lane::split, number, other, session().settings.nccl_timeout, parent.aborted());
      if (message.header.root == color) members.push_back({static_cast<int>(message.header.count), other});
    }
  } else if (parent.others() == Others::ghosts && color != NCCL_SPLIT_NOCOLOR) {
    members = with_ghosts(parent, key);
  }
  if (color == NCCL_SPLIT_NOCOLOR) return std::nullopt;
  std::ranges::sort(members);
  const auto own = std::ranges::find(members, Member{key, parent.rank()});
  return Communicator::Place{.id = child_id(parent, fmt::format("split {} {}", number, color)),
                             .rank = static_cast<int>(own - members.begin()),
                             .ranks = static_cast<int>(members.size()),
                             .card = parent.card()};
}

std::optional<Communicator::Place> shrunk_place(Communicator& parent, std::span<const int> excluded) {
  std::vector<int> left(static_cast<std::size_t>(parent.ranks()));
  std::iota(left.begin(), left.end(), 0);
  for (const int rank : excluded) {
    if (rank < 0 || rank >= parent.ranks()) return std::nullopt;
    std::erase(left, rank);
  }
  const auto own = std::ranges::find(left, parent.rank());
  if (own == left.end()) return std::nullopt;
  return Communicator::Place{
      .id = child_id(parent, fmt::format("shrink {} {}", parent.next_split(), fmt::join(left, ","))),
      .rank = static_cast<int>(own - left.begin()),
      .ranks = static_cast<int>(left.size()),
      .card = parent.card()};
}

}  // namespace vramfit::phantom
