#include "estimator/allocator/compact_ledger.h"

#include <algorithm>
#include <cstdlib>

#include "base/numbers/mix_bits.h"
#include "base/text/units.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMostSmallBytes = std::int64_t{1} << 20;
constexpr std::int64_t kTooLarge = (std::int64_t{1} << 40) / kMinBlock;
constexpr std::size_t kMostSizes = 255;
constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;

bool can_be_compact(const Ledger& ledger, const AllocatorSettings& settings) {
  return !settings.expandable_segments && settings.max_split == kUnlimited &&
         settings.large_segment.n % kMinBlock == 0 && settings.large_segment.n / kMinBlock < kTooLarge &&
         ledger.events.size() < UINT32_MAX;
}

/// The sizes of one pool, numbered as they come.
class Sizes {
 public:
  /// The number of a size that may be new.
  std::size_t number_of(std::uint32_t size) {
    std::size_t& known = known_[(size * kOdd) >> (64 - kKnownBits)];
    if (known < sizes_.size() && sizes_[known] == size) return known;
    known = static_cast<std::size_t>(std::ranges::find(sizes_, size) - sizes_.begin());
    if (known == sizes_.size()) sizes_.push_back(size);
    return known;
  }
  std::size_t count() const { return sizes_.size(); }
  /// In ascending order.
  std::vector<std::uint32_t> sorted() const {
    std::vector<std::uint32_t> sizes = sizes_;
    std::ranges::sort(sizes);
    return sizes;
  }
  /// By number: from 1, the place among the sorted.
  std::vector<std::uint8_t> ranks() const {
    const std::vector<std::uint32_t> all = sorted();
    std::vector<std::uint8_t> ranks;
    for (const std::uint32_t size : sizes_) {
      ranks.push_back(static_cast<std::uint8_t>(std::ranges::upper_bound(all, size) - all.begin()));
    }
    return ranks;
  }

 private:
  static constexpr unsigned kKnownBits = 6;
  std::vector<std::uint32_t> sizes_;
  std::array<std::size_t, std::size_t{1} << kKnownBits> known_{};  // by a hash of sizes
};

class Compactor {
 public:
  Compactor(const Ledger& ledger, const AllocatorSettings& settings)
      : ledger_(ledger),
        settings_(settings),
        rounds_to_divisions_(std::ranges::any_of(settings.roundup_divisions, [](std::int64_t d) { return d > 1; })) {}

  /// False: there is something that it has no form for.
  bool read_requests() {
    compact_.requests.resize(ledger_.events.size());
    for (std::size_t i = 0; i < ledger_.events.size(); ++i) {
      if (!read(ledger_.events[i], compact_.requests[i])) return false;
    }
    for (std::size_t pool = 0; pool < sizes_.size(); ++pool) {
      compact_.pools[pool].sizes = sizes_[pool].sorted();
      ranks_[pool] = sizes_[pool].ranks();
    }
    for (CompactLedger::Request& request : compact_.requests) {
      if (request.what == CompactLedger::Request::What::malloc) request.size = ranks_[request.pool][request.size];
    }
    compact_.words.reserve(ids_);
    for (std::uint64_t id = 0; id < ids_; ++id) compact_.words.push_back(mix_bits((id + 1) * kOdd));
    return true;
  }

  void read_runs(const std::vector<RepeatedPart>& parts) {
    std::vector<std::size_t> cuts{ledger_.events.size()};
    for (const RepeatedPart& part : parts) {
      cuts.insert(cuts.end(), {part.events.begin, part.events.end});
      cuts.insert(cuts.end(), part.stops.begin(), part.stops.end());
    }
    std::ranges::sort(cuts);
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
      while (begin < cut) begin = read_run(begin, cut);
    }
  }

  CompactLedger take() { return std::move(compact_); }

 private:
  bool read(const Event& event, CompactLedger::Request& request) {
    if (event.bytes == 0) {
      request.what = CompactLedger::Request::What::empty_cache;
      return true;
    }
    const std::int64_t bytes = std::abs(event.bytes);
    if (bytes / kMinBlock >= kTooLarge || event.id < 0 || event.id >= kTooLarge) return false;
    ids_ = std::max(ids_, static_cast<std::size_t>(event.id) + 1);
    const std::int64_t rounded = rounds_to_divisions_ ? rounded_request(settings_, bytes) : rounded_to_blocks(bytes);
    if (rounded % kMinBlock != 0) return false;
    request.id = static_cast<std::uint32_t>(event.id);
    request.pool = CompactLedger::pool_of(event.stream, rounded <= kMostSmallBytes);
    if (event.bytes < 0) {
      request.what = CompactLedger::Request::What::free;
      return true;
    }
    Sizes& sizes = sizes_[request.pool];
    request.size = static_cast<std::uint8_t>(sizes.number_of(static_cast<std::uint32_t>(rounded / kMinBlock)));
    return sizes.count() <= kMostSizes;
  }

  /// From `begin` up to `end` at most: where it ends.
  std::size_t read_run(std::size_t begin, std::size_t end) {
    const Event& first = ledger_.events[begin];
    CompactLedger::Run run{.begin = begin, .end = begin};
    do {
      const Event& event = ledger_.events[run.end++];
      run.change_bytes += event.bytes;
      run.category_bytes[static_cast<std::size_t>(event.category)] += event.bytes;
      requested_ = checked_add(requested_, event.bytes);
      if (event.bytes <= 0) continue;
      run.most_bytes = run.allocates ? std::max(run.most_bytes, run.change_bytes) : run.change_bytes;
      run.allocates = true;
    } while (run.end < end && first.bytes != 0 && goes_on(first, ledger_.events[run.end]));
    compact_.runs.push_back(run);
    find_pairs(run);
    return run.end;
  }

  void find_pairs(const CompactLedger::Run& run) {
    using Request = CompactLedger::Request;
    std::array<Request*, std::size_t{2} * kStreams> latest{};  // mallocs, by pool
    for (std::size_t i = run.begin; i < run.end; ++i) {
      Request& request = compact_.requests[i];
      Request*& before = latest[request.pool];
      if (request.what == Request::What::malloc) {
        before = &request;
        continue;
      }
      if (before == nullptr || before->id != request.id) continue;
      before->what = Request::What::pair;
      request.what = Request::What::end_of_pair;
      before = nullptr;
    }
  }

  static bool goes_on(const Event& first, const Event& event) {
    return event.bytes != 0 && event.phase == first.phase && (event.step >= 2) == (first.step >= 2);
  }

  const Ledger& ledger_;
  const AllocatorSettings& settings_;
  bool rounds_to_divisions_;  // some sizes, of the intervals between powers of two
  std::array<Sizes, std::size_t{2} * kStreams> sizes_;
  std::array<std::vector<std::uint8_t>, std::size_t{2} * kStreams> ranks_;
  std::size_t ids_ = 0;
  std::int64_t requested_ = 0;
  CompactLedger compact_;
};

}  // namespace

std::optional<CompactLedger> compacted(const Ledger& ledger, const std::vector<RepeatedPart>& parts,
                                       const AllocatorSettings& settings) {
  if (!can_be_compact(ledger, settings)) return std::nullopt;
  Compactor compactor(ledger, settings);
  if (!compactor.read_requests()) return std::nullopt;
  compactor.read_runs(parts);
  return compactor.take();
}

}  // namespace vramfit
