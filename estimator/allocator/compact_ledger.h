// A ledger in the form that a replay over many orders of addresses reads fastest. What doesn't depend on addresses is
// found out once: the pool of each request, its rounded size, and what all categories hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/allocator/ledger_player.h"
#include "job/allocator/allocator_settings.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// Sizes are in units of kMinBlock, unless a name ends in _bytes.
struct CompactLedger {
  /// What a replay is asked for by the event at the same position.
  struct Request {
    /// pair, end_of_pair: a malloc, and the free of what it gave, without another malloc of the pool in between. Where
    /// a free block fits, the pool is afterwards as it would be without both: free neighbours are joined in any order.
    enum class What : std::uint8_t { malloc, free, pair, end_of_pair, empty_cache };
    std::uint32_t id = 0;
    std::uint8_t pool = 0;  // in `pools`
    std::uint8_t size = 0;  // of a malloc: from 1, the rank of its size among those of the pool
    What what = What::malloc;
  };
  /// Events of one phase, one after the other: no repeat begins, ends or has a stop inside, and what empties the cache
  /// is alone.
  struct Run {
    std::size_t begin = 0, end = 0;  // positions in the ledger
    bool allocates = false;
    std::int64_t change_bytes = 0,
                 most_bytes = 0;  // requested beyond what was requested before it: at its end, at most
    std::array<std::int64_t, kCategories> category_bytes{};  // what the run adds
  };
  /// Of one stream: the small blocks, or the large ones.
  struct Pool {
    std::vector<std::uint32_t> sizes;  // that are requested, ascending
  };

  static std::uint8_t pool_of(Stream stream, bool is_small) {
    return static_cast<std::uint8_t>(2 * static_cast<unsigned>(stream) + (is_small ? 1 : 0));
  }
  static bool is_small(std::uint8_t pool) { return (pool & 1U) != 0; }

  std::vector<Request> requests;
  std::vector<Run> runs;
  std::array<Pool, std::size_t{2} * kStreams> pools;
  std::vector<std::uint64_t> words;  // by id: for fingerprints
};

/// The ledger for UnlimitedReplay. None where that can't play it: under settings other than the size of segments and
/// how requests are rounded, with requests of a TiB and more, and with more than 255 sizes in a pool. Throws FaultError
/// where what is requested exceeds 63 bits, as the sums of a ledger's events do.
std::optional<CompactLedger> compacted(const Ledger& ledger, const std::vector<RepeatedPart>& parts,
                                       const AllocatorSettings& settings);

}  // namespace vramfit
