// What a process on phantom GPUs leaves in process.PID.record of the session folder: a file that it maps and changes in
// place, so that what it says holds at any end, a kill included. phantom/core writes it, cli/rehearse reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace vramfit::process_record {

inline constexpr std::uint64_t kMagic = 0x3164'7263'5274'6676;  // "vftRcrd1", little-endian
inline constexpr std::size_t kMostFailures = 8;                 // listed of each card; all are counted
inline constexpr std::size_t kMostTexts = 768, kTextBytes = 480, kCommandBytes = 4096;

struct Failure {
  std::int64_t asked_bytes = 0, free_bytes = 0;
};

/// One card of the node. Bytes are what this process has of it.
struct Card {
  std::int64_t is_used = 0;
  std::int64_t number = 0;  // as the process numbers its cards; the place in the node is the index in the file
  std::int64_t used_bytes = 0, peak_used_bytes = 0;
  std::int64_t outside_at_peak_bytes = 0;                           // of the peak: context and communicators
  std::int64_t managed_bytes = 0, peak_managed_bytes = 0;           // paged: not part of the above
  std::int64_t peak_requested_bytes = 0, peak_allocated_bytes = 0;  // of PyTorch's allocator, where values are computed
  std::int64_t allocations = 0;
  std::int64_t out_of_memory_count = 0;
  std::int64_t is_last_refused = 0;  // the last request: nothing was allocated since memory ran out
  std::array<Failure, kMostFailures> failures;
};

enum class TextKind : std::int64_t {
  uncertain_place,
  invented_place,
  assumed,
  ghost_place,
  unsupported,
  escape,
  workspace
};

/// Something that is counted by its name. `steers` and `assumptions` are of assumed reads. Of a workspace whose size
/// nobody knows, `bytes` is what it may take at most: the largest that was asked for, or the sum if each is kept.
/// `assumptions` is then -1 if of one of them not even that is known.
struct Text {
  TextKind kind = TextKind::uncertain_place;
  std::int64_t steers = 0, assumptions = 0, count = 0, bytes = 0;
  std::array<char, kTextBytes> name;  // ends in a zero; of a longer one the end
};

struct Header {
  std::uint64_t magic = 0;
  std::int64_t process = 0;
  std::int64_t rank = -1;  // $RANK; -1 without
  std::int64_t ended = 0;  // 1 once its exit handlers ran
  std::int64_t uncertain_reads = 0, uncertain_bytes = 0, invented_reads = 0, invented_bytes = 0, ghost_answers = 0;
  std::int64_t cards = 0;                   // of the node, whether used or not
  std::int64_t texts = 0;                   // raised after the text is complete
  std::array<char, kCommandBytes> command;  // words, each ending in a zero; a longer one is cut
};

// The file: Header, `cards` times Card, kMostTexts times Text.
static_assert(sizeof(Header) % 8 == 0 && sizeof(Card) % 8 == 0 && sizeof(Text) % 8 == 0);

inline constexpr std::size_t file_bytes(std::size_t cards) {
  return sizeof(Header) + cards * sizeof(Card) + kMostTexts * sizeof(Text);
}

}  // namespace vramfit::process_record
