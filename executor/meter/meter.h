// Measures in the estimator's terms: every byte that LibTorch requests, by label, category, phase and step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/meter/memory_history.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// Sets the label and category of allocations made by this thread until it goes out of scope.
class LabelScope {
 public:
  LabelScope(Category category, std::string label);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;
  LabelScope(LabelScope&&) = delete;
  LabelScope& operator=(LabelScope&&) = delete;

 private:
  Category saved_category_;
  std::string saved_label_;
};

/// An allocation that a library call is known to make by itself (a rule's step).
struct ExpectedAllocation {
  Bytes bytes;
  Category category{};
  std::string label;
};

/// Names allocations that this thread makes outside any inner LabelScope: each takes the first expected one of its
/// size that is still open; one that matches none is labelled `otherwise`.
class ExpectedScope {
 public:
  ExpectedScope(std::vector<ExpectedAllocation> expected, std::string otherwise);
  ~ExpectedScope();
  ExpectedScope(const ExpectedScope&) = delete;
  ExpectedScope& operator=(const ExpectedScope&) = delete;
  ExpectedScope(ExpectedScope&&) = delete;
  ExpectedScope& operator=(ExpectedScope&&) = delete;
  /// The name for an allocation of `bytes`; used by the meter.
  ExpectedAllocation take(Bytes bytes);
  /// An inner LabelScope made the allocation of this name: the library will not.
  void strike(const std::string& label);

 private:
  std::vector<ExpectedAllocation> expected_;
  std::string otherwise_;
  ExpectedScope* outer_;
  std::string saved_label_;
};

struct MeasuredPhase {
  Phase phase{};
  int step = 0;               // 0: load
  Bytes peak;                 // of requested bytes
  Bytes allocated, reserved;  // CUDA: what its allocator made of them
};

/// The most that a device's allocator has held since the last query.
struct DevicePeaks {
  Bytes allocated, reserved;
};

/// Bytes beyond the budget: exit 6.
struct OutOfMemory : Error {
  explicit OutOfMemory(const std::string& message) : Error(ExitCode::out_of_memory, message) {}
};

/// Process-wide counts. On CPU an allocator in front of LibTorch's keeps them; on CUDA the caching
/// allocator's trace tracker does. Thread-safe.
class Meter {
 public:
  static Meter& instance();
  /// Puts the counting allocator in place; call before the first tensor. `budget` 0: no limit. Beyond it an
  /// allocation throws OutOfMemory naming the largest live categories. A second call changes the budget only.
  void install_cpu(Bytes budget);
  /// Counts what CUDA's caching allocator hands out on any device; call before the first CUDA tensor.
  void install_cuda();
  /// `take` is called whenever a phase ends; without it nothing is known of allocated and reserved bytes.
  void take_device_peaks(std::function<DevicePeaks()> take);
  /// Keeps the last `events` of them with their labels for a memory snapshot; 0: none.
  void keep_history(std::size_t events);
  /// What is kept of it.
  MemoryHistory history() const;
  void record_events(bool on);        // keep every event (tests, --events)
  void enter(Phase phase, int step);  // from here on events belong to this phase; its peak starts at the current bytes
  Bytes current() const;
  Bytes peak() const;
  std::array<Bytes, kCategories> categories_at_peak() const;
  /// The most that was live at once, since the last reset, of memory that no arena gave (executor/meter/arena.h).
  Bytes peak_beside_arenas() const;
  /// In the order in which they were first entered, the current one up to now.
  std::vector<MeasuredPhase> phases();
  /// Those of one step alone.
  std::vector<MeasuredPhase> phases_of(int step);
  Ledger take_ledger();
  /// Forgets peaks, phases and events, so that another run can be measured in this process.
  void reset();

  /// Buffers of a program in host memory, which are no part of what is counted otherwise.
  void host_allocated(const void* address, Bytes bytes, const std::string& label);
  void host_freed(const void* address);
  Bytes host_peak() const;
  Ledger take_host_ledger();

  /// Called by the allocators.
  void allocated(const void* address, Bytes bytes, std::int64_t stream = 0);
  void freed(const void* address, std::int64_t stream = 0);
  /// Other actions of an allocator, which only a history records.
  void noted(MemoryAction action, std::uint64_t address, Bytes bytes, std::int64_t stream);
  void check_budget(Bytes asked);

 private:
  struct State;
  Meter();
  void fold_device_peaks();
  State* const state_;  // leaked: blocks are freed after static destructors have run
};

/// One line: what was asked for, what is live, and the largest categories.
std::string out_of_memory_message(Bytes asked, Bytes live, Bytes budget,
                                  const std::array<Bytes, kCategories>& by_category);

/// Resident set size of this process, now and at its peak (VmHWM).
struct ResidentBytes {
  Bytes now, peak;
};
ResidentBytes resident_bytes();

}  // namespace vramfit
