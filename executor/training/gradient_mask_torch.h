// The executor's side of --gradient-mask: masked gradients are zeroed before clipping and the optimizer. The
// memory is that of program/lowering/lower.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "executor/sharding/unit_state_torch.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// A random mask over a stretch of one parameter's gradient. Element i of the whole parameter is kept when the i-th
/// word of the stream `key` is below the probability, whatever rank holds it.
struct MaskDraw {
  std::uint64_t key = 0;
  std::int64_t first = 0;  // index in the whole parameter of the stretch's first element
  double keep = 1;         // probability
};

/// The stream of one parameter in one step.
std::uint64_t mask_key(std::uint64_t seed, std::int64_t step, std::string_view parameter);

/// gradient * mask / keep, over 1-D CPU tensors of any float dtype; allocates nothing.
void mask_on_cpu(at::Tensor& gradient, const MaskDraw& draw);
/// The same numbers by LibTorch's elementwise calls, on any device; `words` and `bits` are int64, at least as long as
/// the gradient. On CUDA nothing else is allocated.
void mask_by_calls(at::Tensor& gradient, const MaskDraw& draw, const at::Tensor& words, const at::Tensor& bits);

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
