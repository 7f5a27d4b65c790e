#include "tests/support/summed_peaks.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

namespace vramfit::testing {

namespace {

using Categories = std::array<Bytes, kCategories>;

/// What is live after some of the events.
struct Live {
  Bytes requested, rounded;
  Categories categories{};

  void add(const Event& event, Bytes granule) {
    requested.n += event.bytes;
    rounded.n += (event.bytes < 0 ? -1 : 1) * round_up(std::abs(event.bytes), granule.n);
    categories[static_cast<std::size_t>(event.category)].n += event.bytes;
  }
};

/// Of FoldedPeaks and of FoldedPhase alike.
template <typename Peak>
void raise(Peak& peak, const Live& live) {
  peak.requested = std::max(peak.requested, live.requested);
  if (live.rounded <= peak.rounded) return;
  peak.rounded = live.rounded;
  peak.categories = live.categories;
}

template <typename Peak>
std::string difference_between(const std::string& where, const Peak& folded, const Peak& summed) {
  if (folded.requested != summed.requested || folded.rounded != summed.rounded) {
    return fmt::format("{}: {} bytes, rounded {}; events add up to {} and {}", where, folded.requested.n,
                       folded.rounded.n, summed.requested.n, summed.rounded.n);
  }
  for (int c = 0; c < kCategories; ++c) {
    const Bytes a = folded.categories[static_cast<std::size_t>(c)], b = summed.categories[static_cast<std::size_t>(c)];
    if (a == b) continue;
    return fmt::format("{}: {} bytes of {} at the peak, events add up to {}", where, a.n,
                       category_name(static_cast<Category>(c)), b.n);
  }
  return "";
}

}  // namespace

FoldedPeaks summed_peaks(const Ledger& ledger, Bytes granule) {
  FoldedPeaks peaks;
  Live live;
  for (const Event& event : ledger.events) {
    const bool is_load = event.step == 0;
    auto phase = std::ranges::find_if(
        peaks.phases, [&](const FoldedPhase& p) { return p.phase == event.phase && p.is_load == is_load; });
    if (phase == peaks.phases.end()) {
      phase = peaks.phases.insert(phase, {.phase = event.phase, .is_load = is_load});
    }
    raise(*phase, live);  // what it begins with
    live.add(event, granule);
    raise(*phase, live);
    raise(peaks, live);
  }
  return peaks;
}

std::string difference_of(const FoldedPeaks& folded, const FoldedPeaks& summed) {
  if (std::string all = difference_between("all phases", folded, summed); !all.empty()) return all;
  if (folded.phases.size() != summed.phases.size()) return "there are other phases";
  for (std::size_t p = 0; p < folded.phases.size(); ++p) {
    const FoldedPhase &a = folded.phases[p], &b = summed.phases[p];
    if (a.phase != b.phase || a.is_load != b.is_load) return "phases are in another order";
    const std::string where = std::string(phase_name(a.phase)) + (a.is_load ? " of load" : "");
    if (std::string here = difference_between(where, a, b); !here.empty()) return here;
  }
  return "";
}

}  // namespace vramfit::testing
