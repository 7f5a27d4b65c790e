#include "program/readers/peaks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// What a list of allocations and frees does to memory, from wherever it starts: its net and its highest point.
struct Change {
  std::int64_t requested = 0, rounded = 0;            // net
  std::int64_t requested_peak = 0, rounded_peak = 0;  // at least 0: the start counts
  std::int64_t expected = 0, expected_peak = 0;
  std::array<std::int64_t, kCategories> categories{}, at_peak{};
  std::array<std::int64_t, kSpaces> spaces{}, space_peaks{};  // of those but the card's
  bool has_events = false, has_spaces = false;

  void add(const Buffer& buffer, std::int64_t sign, std::int64_t granule) {
    const std::int64_t bytes = sign * buffer.bytes.n;
    if (buffer.space != Space::device) return add_to(static_cast<std::size_t>(buffer.space), bytes);
    has_events = true;
    expected += buffer.expected.n == 0 ? bytes : sign * buffer.expected.n;
    expected_peak = std::max(expected_peak, expected);
    requested = checked_add(requested, bytes);
    rounded = checked_add(rounded, sign * round_up(buffer.bytes.n, granule));
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

class Folder {
 public:
  Folder(const Program& program, std::int64_t granule)
      : program_(program), granule_(granule), known_(program.blocks.size()) {}

  FoldedPeaks fold() {
    for (const Section& section : program_.sections) {
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
  void pass(const Section& section) {
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const Instruction& instruction = program_.main.instructions[i];
      if (const auto* mark = std::get_if<Mark>(&instruction)) phase_ = mark->phase;
      const Change change = change_of(instruction);
      if (change.has_events) raise(folded_phase(section.kind == Section::Kind::load), change);
      all_.add(change);
    }
  }

  void raise(FoldedPhase& phase, const Change& change) const {
    phase.requested = std::max(phase.requested, Bytes{all_.requested + change.requested_peak});
    const Bytes highest{all_.rounded + change.rounded_peak};
    if (highest <= phase.rounded) return;
    phase.rounded = highest;
    for (std::size_t c = 0; c < kCategories; ++c) phase.categories[c] = Bytes{all_.categories[c] + change.at_peak[c]};
  }

  /// Of the current phase; a phase without events has none.
  FoldedPhase& folded_phase(bool is_load) {
    const auto found = std::ranges::find_if(
        peaks_.phases, [&](const FoldedPhase& known) { return known.phase == phase_ && known.is_load == is_load; });
    if (found != peaks_.phases.end()) return *found;
    return peaks_.phases.emplace_back(FoldedPhase{.phase = phase_, .is_load = is_load});
  }

  Change change_of(const Instruction& instruction) {
    Change change;
    if (const auto* call = std::get_if<Call>(&instruction)) return change_of(*call);
    add(instruction, {.program = program_, .code = program_.main}, change);
    return change;
  }

  /// Calls whose slots hold as many bytes change memory alike.
  const Change& change_of(const Call& call) {
    const Block& block = program_.blocks[at(call.block)];
    std::vector<std::int64_t> sizes;
    for (int slot = 0; slot < block.slots; ++slot) {
      const Buffer& bound = program_.main.buffers[at(program_.main.bindings[call.bindings.first + at(slot)])];
      const int kind = static_cast<int>(bound.space) * kCategories + static_cast<int>(bound.category);
      sizes.insert(sizes.end(), {bound.bytes.n, bound.expected.n, kind});
    }
    const auto [entry, is_new] = known_[at(call.block)].try_emplace(std::move(sizes));
    if (is_new) {
      const Place place = place_in(program_, call);
      for (const Instruction& instruction : place.code.instructions) add(instruction, place, entry->second);
    }
    return entry->second;
  }

  void add(const Instruction& instruction, const Place& place, Change& change) const {
    if (const auto* allocation = std::get_if<Allocate>(&instruction))
      change.add(place.buffer(allocation->buffer), 1, granule_);
    if (const auto* end = std::get_if<Free>(&instruction)) change.add(place.buffer(end->buffer), -1, granule_);
    const auto* run = std::get_if<Run>(&instruction);
    if (run == nullptr) return;
    for (std::uint32_t i = 0; i < run->inside.count; ++i) {
      const Inside& step = place.code.inside[run->inside.first + i];
      change.add(place.buffer(step.buffer), step.what == Inside::What::allocate ? 1 : -1, granule_);
    }
  }

  const Program& program_;
  std::int64_t granule_;
  std::vector<std::map<std::vector<std::int64_t>, Change>> known_;  // by block, by what its slots hold
  Change all_;
  FoldedPeaks peaks_;
  Phase phase_ = Phase::load;
};

}  // namespace

FoldedPeaks folded_peaks(const Program& program, Bytes granule) { return Folder(program, granule.n).fold(); }

}  // namespace vramfit
