#include "estimator/run_player.h"

#include <algorithm>
#include <functional>

namespace vramfit {

Playback RunPlayer::play(const std::vector<RepeatedPart>& parts, PlayedOrders& orders) {
  return LedgerPlayer(ledger_, parts, replay_, orders, sums_).play_lists([this](std::span<const Event> events) {
    return add(events);
  });
}

/// Events of the ledger are whole runs of it. Others are what a step leaves behind.
bool RunPlayer::add(std::span<const Event> events) {
  const Event* const first = ledger_.events.data();
  const Event* const end = first + ledger_.events.size();
  if (events.empty()) return true;
  if (std::less<>()(events.data(), first) || !std::less<>()(events.data(), end)) {
    for (const Event& event : events) add_left(event);
    return true;
  }
  const auto begin = static_cast<std::size_t>(events.data() - first);
  auto run = std::ranges::lower_bound(compact_.runs, begin, {}, &CompactLedger::Run::begin);
  for (; run != compact_.runs.end() && run->end <= begin + events.size(); ++run) {
    if (!add(*run)) return false;
  }
  return true;
}

bool RunPlayer::add(const CompactLedger::Run& run) {
  if (sums_ != nullptr) sums_->begin(ledger_.events[run.begin]);
  const UnlimitedReplay::Most most = replay_.play(run);
  if (sums_ != nullptr && most.is_played) sums_->end(ledger_, run, most, held());
  return most.is_played;
}

void RunPlayer::add_left(const Event& event) {
  replay_.free(event);
  if (sums_ == nullptr) return;
  sums_->begin(event);
  sums_->requested_with(event);
  sums_->end(event, held());
}

HeldBytes RunPlayer::held() const {
  const AllocatorStats stats = replay_.stats();
  return {stats.allocated.current, stats.reserved.current};
}

}  // namespace vramfit
