// Calls of segments: a tape is lowered to a block once, and called wherever it lowers alike.
#pragma once

#include <utility>
#include <vector>

#include "program/lowering/block.h"
#include "program/lowering/unit.h"
#include "program/stages/tape.h"

namespace vramfit::program {

/// The few values of a segment that are held, ascending.
class HeldValues {
 public:
  /// Empty: it isn't held.
  Held of(int value) const;
  /// Empty: it is held no more.
  void set(int value, Held held);
  std::vector<std::pair<int, Held>>& list() { return list_; }
  const std::vector<std::pair<int, Held>>& list() const { return list_; }

 private:
  std::vector<std::pair<int, Held>> list_;
};

/// What is held of one segment while a micro-batch passes through it.
struct SegmentState {
  HeldValues values, gradients;
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
  /// Allocates the gradient shard that the segment's backward pass writes to, before anything of that pass is there.
  /// Nothing where its gradients belong to several units, or where any is added to the shard only afterwards: the shard
  /// would lie beside more than it does otherwise.
  void make_gradient_shard(int segment);
  std::vector<Block> take() { return std::move(blocks_); }

 private:
  /// A block, and the call that it was made for.
  struct Known {
    const void* actions = nullptr;
    CallSlots call;
    LoweredBlock lowered;
    Range offsets;  // of the latest call
  };

  /// Fills in call_.
  void bind(int segment, const std::vector<TapeAction>& actions, const SegmentState& state);
  void bind_values(const SegmentState& state);
  void bind_weights(int segment);
  void bind_homes(int segment, const std::vector<TapeAction>& actions);
  /// The slot of a buffer, new if it has none; -1: of none.
  int slot_of(const Held& held);
  void clear();
  Known& block_of(int segment, const std::vector<TapeAction>& actions);
  Range offsets_of(Known& known);
  /// The buffers of the slots, and of what the block makes.
  Range bindings_of(int segment, const LoweredBlock& lowered);
  void hold(const std::vector<SlotOfValue>& slots, Range bindings, HeldValues& values);
  UnitLowering& unit_of(int parameter);

  CallInputs in_;
  std::vector<int> class_of_segment_;  // segments of one class have one tape, the same names inside, units alike
  std::vector<Block> blocks_;
  std::vector<std::vector<Known>> known_;  // by class
  CallSlots call_;                         // the call under way; keeps its memory from call to call
  std::vector<int> slot_of_buffer_;        // by buffer of the main list; -1: none. Beyond its end: none
  std::vector<int> shares_;                // by slot of the call under way: how many the segment has
};

}  // namespace vramfit::program
