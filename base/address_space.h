// Where a card's driver places blocks. The phantom device hands addresses out by this rule, and a replay of the
// allocator asks the same one: with the native allocator best fit breaks ties by address, so the order in which
// addresses come changes the outcome. docs/allocator.md says how well each order agrees with a real card.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace vramfit {

enum class AddressOrder { ascending, descending, shuffled, driver };

/// The pages into which a card's address range and memory are divided: cudaMalloc's granularity.
inline constexpr std::int64_t kDriverPageBytes = 2 << 20;

/// Pages in the address range of a card with this much memory: enough room for a shuffled order to find gaps.
constexpr std::int64_t address_pages(std::int64_t memory_bytes) { return 8 * (memory_bytes / kDriverPageBytes + 1); }

/// The seed of a card's order, so that the cards of a node differ.
constexpr std::uint64_t address_seed(std::uint64_t seed, int card) {
  return seed * 1'000'003 + static_cast<std::uint64_t>(card);
}

/// Page numbers within one card's range. ascending: the lowest free place that fits; descending: the highest; shuffled:
/// a free place drawn from the seed; driver: as a real driver does when nothing else in the process takes addresses. It
/// reserves ranges of whole 32 MiB, each below the ones before, and a block takes the lowest gap in them that fits.
/// Works in pages; the caller converts to bytes.
class AddressSpace {
 public:
  AddressSpace(AddressOrder order, std::uint64_t seed, std::int64_t pages);
  /// Takes `count` consecutive free pages and returns the first; none if no gap is large enough.
  std::optional<std::int64_t> take(std::int64_t count);
  /// Returns pages that `take` gave, with the same count.
  void give_back(std::int64_t first, std::int64_t count);
  /// What, besides the pages that are taken, decides where the next go: equal states answer alike.
  std::uint64_t state() const {
    return order_ == AddressOrder::driver ? static_cast<std::uint64_t>(reserved_from_) : state_;
  }

 private:
  std::optional<std::int64_t> take_shuffled(std::int64_t count);
  std::optional<std::int64_t> take_highest(std::int64_t count);
  std::optional<std::int64_t> take_lowest(std::int64_t count);
  bool reserve_range(std::int64_t count);
  void carve(std::map<std::int64_t, std::int64_t>::iterator gap, std::int64_t first, std::int64_t count);
  std::uint64_t draw();

  AddressOrder order_;
  std::uint64_t state_;  // of the draws
  std::int64_t pages_;
  std::int64_t reserved_from_;                 // the lowest page in a range of the driver
  std::map<std::int64_t, std::int64_t> gaps_;  // first page -> length, neighbours merged
};

}  // namespace vramfit
