// LibTorch's own caching allocator, on the card that the process sees, in the terms of the replay.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "estimator/allocator/caching_allocator.h"

namespace vramfit::testing {

/// One a process. Streams are numbered by their handles, from the lowest.
class RealAllocator {
 public:
  explicit RealAllocator(int streams);

  std::int64_t total() const;
  std::int64_t free_bytes() const;

  /// Throws what LibTorch throws.
  void set_settings(const std::string& settings);
  void set_fraction(double fraction);
  /// Takes memory from the card, beside the allocator, until `bytes` are left. 0: gives all of it back.
  void leave(std::int64_t bytes);

  std::optional<std::int64_t> malloc(std::int64_t bytes, int stream);  // an address
  void free(std::int64_t address);
  void record_stream(std::int64_t address, int stream);
  void empty_cache();
  /// With no block in use: everything goes back to the card, and the ranges of addresses too, which empty_cache leaves
  /// where nothing was mapped.
  void drain();
  void reset_stats();

  AllocatorStats stats() const;
  std::vector<SegmentView> segments() const;
  std::int64_t handle(int stream) const { return handles_[static_cast<std::size_t>(stream)]; }

 private:
  std::vector<std::int64_t> handles_;
  void* ballast_ = nullptr;
};

}  // namespace vramfit::testing
