// Lowers a segment's tape to a block: what is allocated, run and freed, with slots for what the caller brings or keeps.
#pragma once

#include <vector>

#include "program/lowering/views.h"
#include "program/lowering/writer.h"
#include "program/stages/tape.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

/// What a call binds, and everything besides the tape that decides what the tape lowers to.
struct CallSlots {
  std::vector<Held> slots;             // each buffer once
  std::vector<bool> is_kept;           // by slot: others than this segment hold it, so the block never frees it
  std::vector<bool> is_new;            // by slot: a gradient's home that the block allocates before its first write
  std::vector<Bytes> filled;           // by slot: what of a new home is filled with zeros
  std::vector<Dtype> dtypes;           // by slot
  std::vector<int> values, gradients;  // by value of the segment: its slot, or -1
  std::vector<int> weights;            // by parameter use, op by op: the unit's storage, or -1 while it isn't gathered
  std::vector<int> homes;              // by parameter that gets a gradient, in backward's order
  std::vector<bool> adds;              // by home: there is a gradient already, to which the op adds
  std::vector<std::int64_t> offsets;   // by weight, then by home: where it begins; none where no views are kept
  int loss = -1;                       // last segment: the slot of the step's loss

  void clear();
  int slot_of(const Held& held);

 private:
  std::vector<int> slot_of_buffer_;  // by buffer of the caller; -1: none. Beyond its end: none
};

struct LoweredBlock {
  int block = -1;  // in Program::blocks
  Block code;
  std::vector<int> values, gradients;  // after the call, by value: the slot it is in, or -1
  std::vector<Buffer> made;            // of the slots after those of the call: what the block allocates and leaves
  Range offsets;                       // of its latest call
};

struct BlockInputs {
  const Graph& graph;
  const Precision& precision;
  const UnitLayout& layout;
  BatchShape shape;
  const Segment& segment;
  const SegmentTape& tape;
  Labels& labels;
  Views& views;
};

LoweredBlock lower_block(const BlockInputs& inputs, const std::vector<TapeAction>& actions, const CallSlots& call);

}  // namespace vramfit::program
