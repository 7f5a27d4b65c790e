// What one unit holds between two steps, for checkpoints, dumps and masks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "job/job.h"
#include "program/program.h"
#include "program/stages/units_layout.h"

namespace vramfit {

class ProgramRunner;

/// Padding rows and the gaps between parameters are zero in shards and gradients, so flat operations may run over them.
class UnitState {
 public:
  struct Buffers {
    std::vector<int> shards, states;  // of the main list; after the shards, scales of the first one
    int gradient_shard = -1, fp8_gradients = -1, fp8_scales = -1;
  };
  /// `runner` must outlive it.
  UnitState(const Unit& unit, const Precision& precision, const Buffers& buffers, const ProgramRunner& runner);

  const Unit& unit() const { return *unit_; }
  const Precision& precision() const { return *precision_; }
  /// By Unit::storages.
  const std::vector<const at::Tensor*>& shards() const { return shards_; }
  /// The one in which the parameter lies.
  const at::Tensor& shard(const UnitParameter& p) const { return *shards_[static_cast<std::size_t>(p.storage)]; }
  /// The optimizer's, in the order of its row (program/optimizers); none when nothing is trained.
  const std::vector<const at::Tensor*>& states() const { return states_; }
  /// Of all that is trained: the gradient shard; where some are kept in FP8, numbers made of them, in a tensor of its
  /// own. Undefined until the step's first gradient.
  at::Tensor gradients() const;
  /// A parameter's part of a flat shard tensor, rows_per_rank rows of it.
  static at::Tensor slice(const at::Tensor& flat, const UnitParameter& p);
  /// That part of its shard, as it is stored.
  at::Tensor rows(const UnitParameter& p) const {
    return shard(p).narrow(0, storage_offset(*unit_, p), p.stored_elements);
  }
  /// The same, or of numbers that have a scale those that they stand for, in a tensor of their own.
  at::Tensor numbers(const UnitParameter& p) const;
  at::Tensor scale(const UnitParameter& p) const;

 private:
  const Unit* unit_;
  const Precision* precision_;
  const at::Tensor *gradient_shard_, *fp8_gradients_, *fp8_scales_, *scales_;
  std::vector<const at::Tensor*> shards_, states_;
};

/// By unit: where the program keeps what its states name.
std::vector<UnitState::Buffers> unit_buffers(const program::Program& program, const UnitLayout& layout);

}  // namespace vramfit
