#include "estimator/peak_sums.h"

#include <algorithm>

namespace vramfit {

namespace {

void raise(Bytes& peak, std::int64_t now) { peak.n = std::max(peak.n, now); }

}  // namespace

/// A phase's peak starts at what is live when it is entered.
void PeakSums::begin(const Event& event) {
  const bool steady = event.step >= 2;
  if (current_ != nullptr && current_->phase == event.phase && current_->steady == steady) return;
  const auto known = std::ranges::find_if(
      result_.phases, [&](const PhasePeak& p) { return p.phase == event.phase && p.steady == steady; });
  if (known == result_.phases.end()) {
    result_.phases.push_back(
        {.phase = event.phase, .steady = steady, .requested = {}, .allocated = {}, .reserved = {}});
    current_ = &result_.phases.back();
  } else {
    current_ = &*known;
  }
  raise(current_->entered.requested, now_.requested);
  raise(current_->entered.allocated, now_.held.allocated);
  raise(current_->entered.reserved, now_.held.reserved);
  record_phase();
}

void PeakSums::record_phase() {
  raise(current_->requested, now_.requested);
  raise(current_->allocated, now_.held.allocated);
  raise(current_->reserved, now_.held.reserved);
}

std::int64_t PeakSums::requested_with(const Event& event) {
  now_.live.categories[static_cast<std::size_t>(event.category)].n += event.bytes;
  return now_.requested = checked_add(now_.requested, event.bytes);
}

void PeakSums::end(const Event& event, HeldBytes held) {
  now_.held = held;
  if (event.bytes <= 0) return;
  record_phase();
  raise(result_.peak_requested, now_.requested);
  raise(result_.peak_reserved, held.reserved);
  if (held.allocated <= result_.peak_allocated.n) return;
  result_.peak_allocated.n = held.allocated;
  result_.breakdown = now_.live;
  result_.breakdown.rounding.n = held.allocated - now_.requested;
  peak_ = {};
}

void PeakSums::end(const Ledger& ledger, const CompactLedger::Run& run, const UnlimitedReplay::Most& most,
                   HeldBytes held) {
  if (run.allocates) {
    raise(current_->requested, now_.requested + run.most_bytes);
    raise(result_.peak_requested, now_.requested + run.most_bytes);
    raise(current_->allocated, most.allocated);
    raise(current_->reserved, held.reserved);
    raise(result_.peak_reserved, held.reserved);
    if (most.allocated > result_.peak_allocated.n) {
      result_.peak_allocated.n = most.allocated;
      result_.breakdown = now_.live;
      peak_ = {&ledger, run.begin, most.position, now_.requested};
    }
  }
  now_.requested += run.change_bytes;
  for (std::size_t i = 0; i < run.category_bytes.size(); ++i) now_.live.categories[i].n += run.category_bytes[i];
  now_.held = held;
}

void PeakSums::keep(std::size_t part) {
  kept_.resize(std::max(kept_.size(), part + 1));
  kept_[part] = now_;
}

void PeakSums::go_back(std::size_t part) {
  now_ = kept_[part];
  current_ = nullptr;
}

RankEstimate PeakSums::finish() {
  if (peak_.ledger != nullptr) {
    std::int64_t requested = peak_.requested;
    for (std::size_t i = peak_.begin; i <= peak_.position; ++i) {
      const Event& event = peak_.ledger->events[i];
      requested += event.bytes;
      result_.breakdown.categories[static_cast<std::size_t>(event.category)].n += event.bytes;
    }
    result_.breakdown.rounding.n = result_.peak_allocated.n - requested;
  }
  result_.breakdown.fragmentation = result_.peak_reserved - result_.peak_allocated;
  result_.least_reserved = result_.peak_reserved;
  return std::move(result_);
}

}  // namespace vramfit
