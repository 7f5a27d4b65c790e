// Lowers what saves a training run, from what its load has made: the copy on the host that a sharded checkpoint is
// written from, and the whole parameters that rank 0 writes one after the other.
#pragma once

#include <vector>

#include "program/lowering/lower.h"
#include "program/lowering/views.h"
#include "program/lowering/writer.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

struct SaveInputs {
  const LowerInputs& in;
  const UnitLayout& layout;
  Writer& writer;
  Labels& labels;
  Views& views;
  int& tokens;  // how many there are
};

class SaveLowering {
 public:
  /// After the units are loaded. Makes the copy that lives as long as the run, if it saves sharded checkpoints: own
  /// rows of what this rank saves, without padding. All inputs outlive it.
  explicit SaveLowering(const SaveInputs& inputs);

  /// How the run saves.
  std::vector<Section::Kind> kinds() const;
  void save(Section::Kind kind) { kind == Section::Kind::save_sharded ? sharded() : full(); }

 private:
  struct Unit {
    std::vector<Held> shards;  // by storage, and scales of the first one
    std::vector<Held> states;
  };
  void find_units();
  Held copy_of_units();
  /// Copies shards and states there. Replicas hold the same, so they divide the units among themselves.
  void sharded();
  /// Gathers parameter after parameter, all ranks together; rank 0 writes them. Adapters alone, if the run saves no
  /// more.
  void full();
  bool is_written(const UnitParameter& p) const;
  bool is_saved_here(std::size_t unit) const;
  Bytes saved_bytes(std::size_t unit) const;
  void write_parameter(std::size_t unit, const UnitParameter& p, const Held& on_host);

  SaveInputs in_;
  bool is_rank0_;
  std::vector<Unit> units_;
  Held copy_;
  std::vector<bool> is_adapter_;  // by parameter
};

}  // namespace vramfit::program
