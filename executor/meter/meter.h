// Measures in the estimator's vocabulary: every byte that LibTorch asks for, by label, category, phase and step.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/ledger.h"

namespace vramfit {

/// Sets the label and category of allocations made by this thread until it goes out of scope.
class LabelScope {
 public:
  LabelScope(Category category, std::string label);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  Category saved_category_;
  std::string saved_label_;
};

struct MeasuredPhase {
  Phase phase{};
  int step = 0;
  Bytes peak;
};

/// Process-wide counts. On CPU an allocator in front of LibTorch's keeps them; on CUDA the caching
/// allocator's trace tracker does.
class Meter {
 public:
  static Meter& instance();
  /// Puts the counting allocator in place; call before the first tensor. `budget` 0: no limit. Beyond it an
  /// allocation throws OutOfMemory naming the largest live categories.
  void install_cpu(Bytes budget);
  void record_events(bool on);        // keep every event (tests, --events)
  void enter(Phase phase, int step);  // from here on events belong to this phase; its peak starts at the current bytes
  Bytes current() const;
  Bytes peak() const;
  std::array<Bytes, kCategories> categories_at_peak() const;
  std::vector<MeasuredPhase> phases() const;
  Ledger take_ledger();
};

/// Bytes beyond the budget: exit 6.
std::string out_of_memory_message(Bytes asked, Bytes live, Bytes budget,
                                  const std::array<Bytes, kCategories>& by_category);

/// Resident set size of this process, now and at its peak (VmHWM).
struct ResidentBytes {
  Bytes now, peak;
};
ResidentBytes resident_bytes();

}  // namespace vramfit
