// The executor's side of --gradient-mask: masked gradients are zeroed before clipping and the optimizer. The
// memory is that of program/lowering/lower.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "executor/ops/random_mask_torch.h"
#include "executor/sharding/unit_state_torch.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// The stream of one parameter in one step.
std::uint64_t mask_key(std::uint64_t seed, std::int64_t step, std::string_view parameter);

struct MaskInputs {
  const Graph& graph;
  const Job& job;
  const UnitLayout& layout;
  int shard_rank = 0;
  at::Device place;
  std::uint64_t seed = 0;
  bool has_values = true;  // false: the file's names and shapes are checked, its masks are not read
};

class GradientMasks {
 public:
  explicit GradientMasks(const MaskInputs& inputs) : in_(inputs) {}

  /// Reads this rank's part of a mask file: safetensors of bool or uint8, 0 or 1, by parameter name. A parameter that
  /// it lacks is trained whole. Throws ModelError for a malformed file, a name that is no trainable parameter, another
  /// shape or type, or another number.
  /// `masks`: bytes over the trainable prefix of each unit's shard, by unit; undefined where nothing is trained.
  void load(std::vector<at::Tensor> masks);
  /// Masks the step's gradient shards, by unit; undefined where there are none.
  void apply(std::int64_t step, std::vector<at::Tensor>& gradients) const;

 private:
  void draw(double keep, std::int64_t step, const std::vector<at::Tensor>& gradients) const;

  MaskInputs in_;
  std::vector<at::Tensor> masks_;
};

}  // namespace vramfit
