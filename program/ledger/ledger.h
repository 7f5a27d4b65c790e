// The estimate is a ledger of labelled allocations, each one malloc and one free in a total order of
// events. Peaks, breakdowns, plans and comparisons are folds over it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

enum class Category : std::uint8_t {
  parameters,
  unsharded_parameters,
  gradients,
  optimizer_state,
  activations,
  logits_and_loss,
  communication,
  temporaries,
  workspace
};
inline constexpr int kCategories = 9;
std::string_view category_name(Category category);

enum class Phase : std::uint8_t { load, forward, loss, backward, clip, optimizer, evaluation, checkpoint_save };
inline constexpr int kPhases = 8;
std::string_view phase_name(Phase phase);

/// The stream that a block is allocated on; each has its own pools. FSDP2's copy-in and all-gather buffers are on
/// `all_gather`, or of a second model on `reference`, and the outputs of its reduce-scatter on `reduce_scatter`. Copies
/// between the card and its host run on `to_host` and `to_device`. `host` is the rank's own thread: what is run on it
/// computes on the CPU, over host memory, and a wait on it holds up the launches of all other streams.
enum class Stream : std::uint8_t { compute, all_gather, reduce_scatter, to_host, to_device, reference, host };
inline constexpr int kStreams = 7;

/// One malloc (bytes > 0) or free (bytes < 0) of a labelled block. `id` pairs the two. Of no bytes: what the allocator
/// has cached goes back to the card.
struct Event {
  std::int64_t bytes = 0;  // as requested, signed
  std::int64_t id = -1;
  int label = -1;         // index in Ledger::labels
  std::int32_t step = 0;  // 0: load, 1: first step, 2: steady step
  Category category = Category::temporaries;
  Phase phase = Phase::load;
  Stream stream = Stream::compute;
};

/// Events that stand for `times` equal passes, one after the other: a micro-batch between the second and the last, or
/// the steady step. Repeats follow each other or lie inside one another.
struct Repeat {
  std::size_t begin = 0, end = 0;  // positions in Ledger::events
  std::int64_t times = 1;          // kForever: as long as the job goes on
};
inline constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

struct Ledger {
  std::vector<std::string> labels;  // "layers.3.mlp.act: out"
  std::vector<Event> events;
  std::vector<Repeat> repeats;  // by begin, the outer one first
};

/// Records events; the counting side's allocator. Labels are interned once and reused.
class LedgerWriter {
 public:
  int label(const std::string& text);
  /// Adds a label without searching for an equal one: the caller keeps the index.
  int add_label(std::string text);
  /// Returns the block's id.
  std::int64_t allocate(Bytes bytes, Category category, int label, Stream stream = Stream::compute);
  /// Never throws: destructors call it. `allocate` leaves room for the event.
  void free(std::int64_t id) noexcept;
  void empty_cache();
  void set_phase(Phase phase, int step);
  Phase phase() const { return phase_; }
  /// What is recorded until the matching end_repeat stands for `times` passes.
  void begin_repeat(std::int64_t times);
  void end_repeat();
  Ledger take() { return std::move(ledger_); }

 private:
  struct Block {
    std::int64_t bytes = 0;
    int label = -1;
    Category category{};
    Stream stream = Stream::compute;
  };
  Ledger ledger_;
  std::vector<Block> blocks_;  // by id
  std::size_t live_ = 0;       // blocks not yet freed
  std::unordered_map<std::string, int> label_numbers_;
  std::vector<std::size_t> open_repeats_;  // in Ledger::repeats
  Phase phase_ = Phase::load;
  int step_ = 0;
};

}  // namespace vramfit
