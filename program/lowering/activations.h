// Activations that wait in host memory for the backward pass (--offload activations): docs/offload.md has the picture.
#pragma once

#include <optional>
#include <vector>

#include "model_specs/graph.h"
#include "program/lowering/calls.h"
#include "program/lowering/host.h"

namespace vramfit::program {

class OffloadedActivations {
 public:
  struct Inputs {
    const Graph& graph;
    Writer& writer;
    Views& views;
    HostSide& host;
    std::vector<bool> leaves;  // by segment: whether its activations leave
  };
  explicit OffloadedActivations(Inputs inputs) : in_(std::move(inputs)), stored_(in_.leaves.size()) {}

  /// After a segment's forward pass: those of the segment before it that left are freed, and what this segment keeps
  /// for its own backward pass alone is copied to host memory.
  void after_forward(int segment, HeldValues& values);
  /// Before anything of a segment's backward pass: what left of it is back in `values`, and what left of the segment
  /// below is on its way.
  void before_backward(int segment, HeldValues& values);
  /// Host memory that activations go to, the same in every step: allocated by whoever loads.
  std::vector<int> host_buffers() const;

 private:
  /// One that left; several values may share it.
  struct Stored {
    Buffer on_card;
    Held on_host;
    std::vector<int> values;
  };
  struct OfSegment {
    std::vector<Stored> list;
    bool is_out = false;  // from its forward to its backward pass
  };
  struct Leaving {
    std::vector<Held> on_card;
    int token = -1;
  };
  struct Coming {
    int segment = -1;
    std::vector<Held> on_card;  // by place in the list
    int token = -1;
  };

  /// Values by buffer that this segment alone holds.
  std::vector<Stored> leaving_of(const HeldValues& values) const;
  void land();
  void fetch(int segment);
  HostSide::Copy copy_of(const Held& from, const Held& to) const;

  Inputs in_;
  std::vector<OfSegment> stored_;  // by segment
  std::optional<Leaving> leaving_;
  std::optional<Coming> coming_;
};

}  // namespace vramfit::program
