// Calls of segments: a tape is lowered to a block once, and called wherever it lowers alike.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "program/lowering/block.h"
#include "program/lowering/unit.h"
#include "program/stages/tape.h"

namespace vramfit::program {

/// What is held of one segment while a micro-batch passes through it.
struct SegmentState {
  std::vector<Held> values, gradients;
};

struct CallInputs {
  const Graph& graph;
  const Precision& precision;
  const UnitLayout& layout;
  BatchShape shape;
  const SharedTapes& tapes;  // by segment
  std::vector<UnitLowering>& units;
  Writer& writer;
  Labels& labels;
  Views& views;
  const Held& loss;  // of the step
};

class Calls {
 public:
  explicit Calls(const CallInputs& inputs);

  /// Calls the block of `actions`, one of the lists of the segment's tape, and leaves in `state` what it leaves.
  void call(int segment, const std::vector<TapeAction>& actions, SegmentState& state);
  std::vector<Block> take() { return std::move(blocks_); }

 private:
  /// Equal for calls that lower alike: of the same names inside, with the same slots for the same values, weights and
  /// homes, and slots of the same kinds.
  struct Key {
    const void* actions = nullptr;
    int segment_class = -1;
    std::vector<std::int64_t> bound;
    auto operator<=>(const Key&) const = default;
  };
  enum class Bound : std::uint8_t { value, gradient, weights, home, added_home };

  /// Adds to the key what `slot` is bound for: the `index`th of its kind.
  void note(Bound what, std::size_t index, int slot);
  /// Fills in call_ and key_.
  void bind(int segment, const std::vector<TapeAction>& actions, const SegmentState& state);
  void bind_values(const SegmentState& state);
  void bind_weights(const std::vector<Op>& ops);
  void bind_homes(const std::vector<Op>& ops, const std::vector<TapeAction>& actions);
  LoweredBlock& block_of(int segment, const std::vector<TapeAction>& actions);
  Range offsets_of(LoweredBlock& lowered);
  UnitLowering& unit_of(int parameter);

  CallInputs in_;
  std::vector<int> class_of_segment_;  // segments of one class have one tape and the same names inside
  std::vector<Block> blocks_;
  std::map<Key, LoweredBlock> lowered_;
  CallSlots call_;  // of the call under way: with its key, it keeps its memory from call to call
  Key key_;
  std::vector<int> shares_;  // by slot of the call under way: how many the segment has
};

}  // namespace vramfit::program
