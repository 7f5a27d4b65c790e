// The table of optimizers: what each keeps, and what an update costs. The row of each name in
// job/optimizers/optimizers.def is in program/optimizers/NAME.cpp; whoever allocates, loads, updates, saves or times
// states reads it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "job/cluster/device.h"
#include "job/job.h"
#include "program/stages/units_layout.h"
#include "program/work.h"

namespace vramfit {

namespace eager {
class Torch;
class Wrapper;
}  // namespace eager

/// A tensor that each unit with trainable parameters keeps on its device, labelled "UNIT: NAME"; in checkpoints each
/// parameter has its part of it under NAME.
struct OptimizerState {
  enum class Holds : std::uint8_t {
    elements,  // one number for every `covers` trainable elements of the unit's shard, in their order
    updates,   // one fp32 number: how often the unit was updated
    // One number for each row of the shard's trained matrices, each of their columns (the same on all ranks that hold
    // rows of it), each element of its other trained parameters; parameter by parameter, without gaps.
    rows,
    columns,
    vectors,
    parameters  // one number for what a rank has of each trained parameter, in their order
  };
  std::string_view name;
  Holds holds = Holds::elements;
  std::int64_t covers = 1;          // at most, and a divisor of, Optimizer::block
  std::optional<Dtype> dtype = {};  // of its numbers; none: --state-dtype's
};
/// How many numbers a state of `elements` or `updates` has for that many elements of a shard.
std::int64_t numbers_of(const OptimizerState& state, std::int64_t elements);
std::int64_t elements_of(const OptimizerState& state, const Unit& unit);
/// Whether it has a place in the state for each parameter, whatever lies between them in the shard.
bool is_by_parameter(const OptimizerState& state);
Dtype dtype_of(const OptimizerState& state, const Precision& precision);

/// Where numbers of a unit's state lie.
struct StatePart {
  std::int64_t begin = 0, numbers = 0;
};
/// Those of the first `rows` rows of the trained parameter at `slot`; columns are all there.
StatePart part_of(const OptimizerState& state, const Unit& unit, std::size_t slot, std::int64_t rows);
/// Those that a rank with `rows` rows of the parameter from `first_row` on writes to a checkpoint: what is the same on
/// all ranks goes with the first row.
StatePart saved_part_of(const OptimizerState& state, const Unit& unit, std::size_t slot, std::int64_t first_row,
                        std::int64_t rows);

/// An update of one unit.
struct UnitUpdate {
  std::int64_t elements = 0;  // trained on this rank
  Dtype storage = Dtype::f32, gradient = Dtype::f32, state = Dtype::f32;
  DeviceKind device = DeviceKind::cpu;
  std::int64_t parameters = 1, longest_row = 1;  // that are trained; the most elements that a row of them has
  KernelSource kernels = KernelSource::libtorch;
  OptimizerImplementation form = OptimizerImplementation::fused;
  bool divides = false;  // gradients first
};
/// By whom and in which way a job's units are updated.
struct Updating {
  DeviceKind device = DeviceKind::cpu;
  KernelSource kernels = KernelSource::libtorch;
  OptimizerImplementation form = OptimizerImplementation::fused;
};
UnitUpdate update_of(const Unit& unit, const Precision& precision, const Updating& by);
/// Whether it is done by a CUDA kernel of the engine's own, where the optimizer has one.
inline bool wants_own_kernel(const UnitUpdate& update) {
  return update.device == DeviceKind::cuda && update.kernels == KernelSource::vramfit;
}

/// A tensor that the calls of an update make while they run, for one of the unit's parameters. Once it is there, what
/// was at `place` before is freed; without bytes, that is all. What is left at the end is freed in the order of places.
struct UpdateTemporary {
  std::string_view name;
  std::size_t slot = 0, place = 0;
  Bytes bytes{};
};

/// fp32 numbers that an update needs of all of a parameter. Before the update each rank finds them for its rows, and
/// they are summed over the ranks that hold rows of it. The buffer is labelled "UNIT: NAME". What finds them is a run
/// of Kernel::update that only reads the parameters and writes its last operand; that and the update have, after the
/// states, what they work in and all sums so far.
struct OptimizerSums {
  std::string_view name;
  std::int64_t (*numbers)(const Unit& unit);
  Work (*work)(const UnitUpdate& update);
};

struct Optimizer {
  std::span<const OptimizerState> states;  // as executor/optimizers gets them
  Work (*work)(const UnitUpdate& update);
  /// Elements of a parameter's shard that share numbers of its states; a power of two. Parameters begin at multiples of
  /// it in the shard, so that no block has elements of two.
  std::int64_t block = 1;
  /// Elements of fp32 that an update works in, which are allocated before it and freed after it; null: none.
  std::int64_t (*scratch)(const UnitUpdate& update) = nullptr;
  /// Null: none in any form.
  std::vector<UpdateTemporary> (*temporaries)(const Unit& unit, const UnitUpdate& update) = nullptr;
  std::span<const OptimizerSums> sums = {};  // in the order in which they are found, each from those before it
  bool takes_other_states = false;           // of another dtype than the parameters
  bool rounds_randomly = false;              // parameters, which must be stored in bf16 then
  std::span<const OptimizerImplementation> implementations;  // that executor/optimizers has
  std::span<const OptimizerImplementation> pytorch;          // that `pytorch_step` knows
  /// What PyTorch's optimizer does in a step (program/pytorch/optimizers/optimizers.h); null: not modelled.
  void (*pytorch_step)(eager::Torch&, eager::Wrapper&, OptimizerImplementation, Dtype state) = nullptr;
};

/// One kernel, or one after the other, over all of a unit.
inline constexpr std::array kFusedOnly{OptimizerImplementation::fused};
/// The same kernel, over states on the card or in managed memory.
inline constexpr std::array kFusedOrPaged{OptimizerImplementation::fused, OptimizerImplementation::paged};

/// Forms of LibTorch's calls, one after the other: over lists of all of a unit's parameters, or for each parameter. The
/// host decides for them whether a step is skipped, and they have tensors of their own (UpdateTemporary).
inline bool is_of_calls(OptimizerImplementation form) {
  return form == OptimizerImplementation::foreach || form == OptimizerImplementation::loop;
}

/// The row of `name`; throws InputError with a suggestion.
const Optimizer& optimizer_named(std::string_view name);

/// Whether the job's optimizer is modelled under its runtime.
bool has_optimizer(const Job& job);

namespace optimizers {
#define OPTIMIZER(name, ...) extern const Optimizer name;
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
}  // namespace optimizers

}  // namespace vramfit
