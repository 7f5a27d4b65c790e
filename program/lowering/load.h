// Lowers load: what a rank makes once, and what of it lives until the job ends.
#pragma once

#include <string_view>
#include <vector>

#include "program/lowering/host.h"
#include "program/lowering/lower.h"
#include "program/lowering/unit.h"
#include "program/lowering/views.h"
#include "program/lowering/writer.h"

namespace vramfit::program {

/// What the parts of a lowering share.
struct Shared {
  const LowerInputs& in;
  const Job& job;
  const UnitLayout& layout;
  BatchShape shape;
  bool is_cuda;
  Writer& writer;
  Labels& labels;
  Views& views;
  std::vector<UnitLowering>& units;
  int& tokens;  // how many there are
  HostSide& host;
};

/// What load makes besides the units; empty where the job has none.
struct Residents {
  Held loss, norm, divisor, norm_part;           // of the step; what gradients are divided by; CUDA: the norm of a part
  Held scale, growth, found_inf;                 // of a loss that is scaled
  Held host_norm, host_divisor, host_found_inf;  // the same in host memory, of what is updated there
  std::vector<Held> masks;                       // by unit: of gradients
  std::vector<Held> pinned;                      // token ids, labels
  std::vector<Held> workspace;                   // rope tables, libraries' own
};

class LoadLowering {
 public:
  LoadLowering(const Shared& shared, Residents& residents) : in_(shared), made_(residents) {}
  /// `sums_gradients`: a unit's gradients are reduced several times in a step.
  void load(bool sums_gradients);

 private:
  Held workspace(std::string_view label, Bytes bytes, Dtype dtype = Dtype::f32) const;
  Held pinned(const char* label, Bytes bytes, Dtype dtype) const;
  void load_units() const;
  void load_masks();
  void load_ropes();
  void load_workspaces();
  void load_numbers();
  void load_host_numbers();

  const Shared& in_;
  Residents& made_;
};

/// Of the token ids of a micro-batch, and of its labels.
Bytes bytes_of_ids(const Shared& in);

}  // namespace vramfit::program
