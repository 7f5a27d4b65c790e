// What the real allocator asks of the driver, seen on the way: the test program defines the functions itself and passes
// the calls on. So the replay can be given the addresses that were handed out, and what each event query was answered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace vramfit::testing {

struct DriverTap {
  std::vector<std::int64_t> addresses;  // of cudaMalloc and cuMemAddressReserve, in order
  /// (stream handle, number of the event on that stream) -> complete?
  std::map<std::pair<std::int64_t, std::int64_t>, bool> answers;
  /// When set: how many events of each stream are complete; others are answered "not ready".
  std::optional<std::map<std::int64_t, std::int64_t>> complete;

  /// Forgets everything, and the numbers of events with it.
  void reset();
  /// Forgets what the last call did.
  void clear();
};

DriverTap& driver_tap();

}  // namespace vramfit::testing
