// What has surely happened before what, on streams that wait for each other by events.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/ledger/ledger.h"

namespace vramfit::program {

/// A point in each stream's queue: how many of its calls.
using StreamPoints = std::array<std::int64_t, kStreams>;

/// The last calls that wrote a buffer and that touched it at all, on each stream.
struct StreamUse {
  StreamPoints written = {}, touched = {};
};

class StreamOrder {
 public:
  explicit StreamOrder(int tokens) : done_(static_cast<std::size_t>(tokens)) {}

  /// A call on `stream`.
  void advance(Stream stream) { ++seen_[index(stream)][index(stream)]; }
  void record(int token, Stream stream) { done_[static_cast<std::size_t>(token)] = seen_[index(stream)]; }
  void wait(int token, Stream stream);

  /// The latest call on `stream` reads, or writes.
  void read(Stream stream, StreamUse& use) const { use.touched[index(stream)] = now(stream); }
  void write(Stream stream, StreamUse& use) const {
    use.touched[index(stream)] = use.written[index(stream)] = now(stream);
  }
  /// Whether all of `points` comes before what `stream` does next.
  bool is_before(const StreamPoints& points, Stream stream) const;

 private:
  static std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }
  std::int64_t now(Stream stream) const { return seen_[index(stream)][index(stream)]; }

  std::array<StreamPoints, kStreams> seen_{};  // by stream: what it has waited for, and its own
  std::vector<StreamPoints> done_;             // by token
};

}  // namespace vramfit::program
