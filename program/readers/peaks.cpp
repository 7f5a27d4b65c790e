#include "program/readers/peaks.h"

#include <algorithm>
#include <utility>

#include "base/numbers/index.h"
#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

/// What a list of allocations and frees does to memory, from wherever it starts: its net and its highest point.
struct Change {
  std::int64_t requested = 0, rounded = 0;            // net
  std::int64_t requested_peak = 0, rounded_peak = 0;  // at least 0: the start counts
  std::int64_t expected = 0, expected_peak = 0;
  std::array<std::int64_t, kCategories> categories{}, at_peak{};
  std::array<std::int64_t, kSpaces> spaces{}, space_peaks{};  // of those but the card's
  bool has_events = false, has_spaces = false;

  /// `granule`: a power of two.
  void add(const Buffer& buffer, std::int64_t sign, std::int64_t granule) {
    const std::int64_t bytes = sign * buffer.bytes.n;
    if (buffer.space != Space::device) return add_to(static_cast<std::size_t>(buffer.space), bytes);
    has_events = true;
    expected += buffer.expected.n == 0 ? bytes : sign * buffer.expected.n;
    expected_peak = std::max(expected_peak, expected);
    rounded = checked_add(rounded, sign * (checked_add(buffer.bytes.n, granule - 1) & -granule));
    requested += bytes;  // no more than `rounded`, which is checked
    categories[static_cast<std::size_t>(buffer.category)] += bytes;
    requested_peak = std::max(requested_peak, requested);
    if (rounded <= rounded_peak) return;
    rounded_peak = rounded;
    at_peak = categories;
  }

  void add_to(std::size_t space, std::int64_t bytes) {
    has_spaces = true;
    spaces[space] = checked_add(spaces[space], bytes);
    space_peaks[space] = std::max(space_peaks[space], spaces[space]);
  }

  void add_spaces(const Change& next) {
    for (std::size_t s = 0; s < kSpaces; ++s) {
      space_peaks[s] = std::max(space_peaks[s], checked_add(spaces[s], next.space_peaks[s]));
      spaces[s] += next.spaces[s];
    }
  }

  /// `times` what has been added since `before`, net.
  void add_net(const Change& before, std::int64_t times) {
    requested = checked_add(requested, checked_mul(requested - before.requested, times));
    rounded = checked_add(rounded, checked_mul(rounded - before.rounded, times));
    expected += (expected - before.expected) * times;
    for (std::size_t c = 0; c < kCategories; ++c) categories[c] += (categories[c] - before.categories[c]) * times;
  }

  void add(const Change& next) {
    if (next.has_spaces) add_spaces(next);
    expected_peak = std::max(expected_peak, expected + next.expected_peak);
    expected += next.expected;
    requested_peak = std::max(requested_peak, checked_add(requested, next.requested_peak));
    if (const std::int64_t highest = checked_add(rounded, next.rounded_peak); highest > rounded_peak) {
      rounded_peak = highest;
      for (std::size_t c = 0; c < kCategories; ++c) at_peak[c] = categories[c] + next.at_peak[c];
    }
    requested += next.requested;
    rounded += next.rounded;
    for (std::size_t c = 0; c < kCategories; ++c) categories[c] += next.categories[c];
  }
};

/// All that a block's allocations and frees depend on of what is bound to a slot.
struct SlotKind {
  Bytes bytes, expected;
  Space space;
  Category category;
  bool operator==(const SlotKind&) const = default;
};

SlotKind kind_of(const Buffer& buffer) { return {buffer.bytes, buffer.expected, buffer.space, buffer.category}; }

class Folder {
 public:
  Folder(const Program& program, std::int64_t granule)
      : program_(program),
        granule_(granule),
        main_{.program = program, .code = program.main},
        known_(program.blocks.size()) {}

  FoldedPeaks fold() {
    for (const Section& section : merged_sections(program_)) {
      const Change before = all_;
      pass(section);
      if (section.times == 1 || all_.requested == before.requested) continue;
      // What a pass keeps for good is there in the next; the last of them is the highest.
      all_.add_net(before, section.times - 2);
      pass(section);
    }
    peaks_.requested = Bytes{all_.requested_peak};
    peaks_.rounded = Bytes{all_.rounded_peak};
    peaks_.expected = Bytes{all_.expected_peak};
    for (std::size_t c = 0; c < kCategories; ++c) peaks_.categories[c] = Bytes{all_.at_peak[c]};
    for (std::size_t s = 0; s < kSpaces; ++s) peaks_.spaces[s] = Bytes{all_.space_peaks[s]};
    peaks_.spaces.front() = peaks_.requested;
    return std::move(peaks_);
  }

 private:
  /// A block's change, of calls whose slots hold as many bytes of the same kinds.
  struct Known {
    std::vector<SlotKind> slots;
    Change change;
  };

  void pass(const Section& section) {
    is_load_ = section.kind == Section::Kind::load;
    folded_ = kNone;
    for (std::size_t i = section.begin; i < section.end; ++i) read(program_.main.instructions[i]);
  }

  void read(const Instruction& instruction) {
    if (const auto* mark = std::get_if<Mark>(&instruction)) {
      if (mark->phase != phase_) folded_ = kNone;
      phase_ = mark->phase;
    } else if (const auto* call = std::get_if<Call>(&instruction)) {
      const Change& change = change_of(*call);
      if (change.has_events) raise(change);
      all_.add(change);
    } else {
      for_each_event(main_.code, instruction, [this](int buffer, int sign) { read(main_.buffer(buffer), sign); });
    }
  }

  void read(const Buffer& buffer, std::int64_t sign) {
    const bool is_freed = sign < 0, is_on_card = buffer.space == Space::device;
    // A phase begins as high as what it finds. From its first event on, it is as high as what there is.
    if (is_freed && is_on_card && folded_ == kNone) raise();
    all_.add(buffer, sign, granule_);
    if (!is_freed && is_on_card) raise();
  }

  /// The current phase is at least as high as what there is now.
  void raise() {
    FoldedPhase& phase = folded_phase();
    phase.requested = std::max(phase.requested, Bytes{all_.requested});
    if (Bytes{all_.rounded} <= phase.rounded) return;
    phase.rounded = Bytes{all_.rounded};
    for (std::size_t c = 0; c < kCategories; ++c) phase.categories[c] = Bytes{all_.categories[c]};
  }

  /// The current phase is at least as high as `change` lifts what there is now.
  void raise(const Change& change) {
    FoldedPhase& phase = folded_phase();
    phase.requested = std::max(phase.requested, Bytes{all_.requested + change.requested_peak});
    const Bytes highest{all_.rounded + change.rounded_peak};
    if (highest <= phase.rounded) return;
    phase.rounded = highest;
    for (std::size_t c = 0; c < kCategories; ++c) phase.categories[c] = Bytes{all_.categories[c] + change.at_peak[c]};
  }

  /// Of the current phase; a phase without events has none.
  FoldedPhase& folded_phase() {
    if (folded_ != kNone) return peaks_.phases[folded_];
    const auto found = std::ranges::find_if(
        peaks_.phases, [&](const FoldedPhase& known) { return known.phase == phase_ && known.is_load == is_load_; });
    folded_ = static_cast<std::size_t>(found - peaks_.phases.begin());
    if (found == peaks_.phases.end()) peaks_.phases.push_back({.phase = phase_, .is_load = is_load_});
    return peaks_.phases[folded_];
  }

  const Change& change_of(const Call& call) {
    const Place place = place_in(program_, call);
    std::vector<Known>& known = known_[at(call.block)];
    const auto holds = [&](const Known& each) {
      for (std::size_t slot = 0; slot < each.slots.size(); ++slot) {
        if (each.slots[slot] != kind_of(place.buffer(static_cast<int>(slot)))) return false;
      }
      return true;
    };
    const auto found = std::ranges::find_if(known, holds);
    if (found != known.end()) return found->change;
    Known& made = known.emplace_back();
    for (int slot = 0; slot < place.slots; ++slot) made.slots.push_back(kind_of(place.buffer(slot)));
    for (const Instruction& instruction : place.code.instructions) {
      for_each_event(place.code, instruction,
                     [&](int buffer, int sign) { made.change.add(place.buffer(buffer), sign, granule_); });
    }
    return made.change;
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  const Program& program_;
  std::int64_t granule_;
  Place main_;
  std::vector<std::vector<Known>> known_;  // by block
  Change all_;
  FoldedPeaks peaks_;
  Phase phase_ = Phase::load;
  bool is_load_ = false;
  std::size_t folded_ = kNone;  // in peaks_.phases: that of phase_ and is_load_; kNone: not looked up yet
};

}  // namespace

FoldedPeaks folded_peaks(const Program& program, Bytes granule) { return Folder(program, granule.n).fold(); }

}  // namespace vramfit
