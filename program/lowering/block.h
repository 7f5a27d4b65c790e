// Lowers a segment's tape to a block: what is allocated, run and freed, with slots for what the caller brings or keeps.
#pragma once

#include <vector>

#include "program/lowering/views.h"
#include "program/lowering/writer.h"
#include "program/stages/tape.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

/// A buffer of the caller that a call binds.
struct Slot {
  int buffer = -1;
  Dtype dtype = Dtype::u8;
  bool is_kept = true;  // others than this segment hold it, so the block never frees it
  bool is_new = false;  // a gradient's home that the block allocates before its first write
  Bytes filled = {};    // if new: what of it is filled with zeros
};
/// A value of the segment, or its gradient, and the slot that it is in.
struct SlotOfValue {
  int value = -1, slot = -1;
  bool operator==(const SlotOfValue&) const = default;
};
/// Where the gradient of a parameter goes.
struct HomeSlot {
  int slot = -1;
  bool adds = false;  // there is a gradient already, to which the op adds
  bool operator==(const HomeSlot&) const = default;
};

/// What a call binds, and everything besides the tape that decides what the tape lowers to.
struct CallSlots {
  std::vector<Slot> slots;                     // each buffer once
  std::vector<SlotOfValue> values, gradients;  // that are held, ascending
  std::vector<int> weights;                    // by unit of the segment: its storage, or -1 while it isn't gathered
  std::vector<HomeSlot> homes;                 // by parameter that gets a gradient, in backward's order
  std::vector<std::int64_t> offsets;           // by weight, then by home: where it begins; none where no views are kept
  int loss = -1;                               // last segment: the slot of the step's loss
};
/// Whether one tape lowers to the same block for both, whatever the buffers are and wherever parameters lie.
bool are_alike(const CallSlots& a, const CallSlots& b);

struct LoweredBlock {
  int block = -1;  // in Program::blocks
  Block code;
  std::vector<SlotOfValue> values, gradients;  // that the call leaves, ascending
  std::vector<Buffer> made;  // of the slots after those of the call: what the block allocates and leaves
};

struct BlockInputs {
  const Graph& graph;
  const Precision& precision;
  const UnitLayout& layout;
  BatchShape shape;
  const Segment& segment;
  const SegmentTape& tape;
  const std::vector<int>& units;  // that the segment touches
  Labels& labels;
  Views& views;
};

LoweredBlock lower_block(const BlockInputs& inputs, const std::vector<TapeAction>& actions, const CallSlots& call);

}  // namespace vramfit::program
