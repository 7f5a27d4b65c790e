// AdamW with the first average in FP8 (e4m3) and the second in fp16, each with a scale for what a rank has of a tensor:
// the states of FP8-LM (Peng et al., arXiv:2310.18313, section 2.2), as MS-AMP keeps them from its level O2 on
// (msamp/optim/adamw.py at 9746ea8). A scale isn't known before all of a tensor's averages are, so an update goes over
// them twice.
#include <array>

#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::array kStates{
    OptimizerState{.name = "exp_avg", .dtype = Dtype::u8}, OptimizerState{.name = "exp_avg_sq", .dtype = Dtype::f16},
    OptimizerState{.name = "exp_avg_scale", .holds = Holds::parameters, .dtype = Dtype::f32},
    OptimizerState{.name = "exp_avg_sq_scale", .holds = Holds::parameters, .dtype = Dtype::f32},
    OptimizerState{.name = "step", .holds = Holds::updates}};

/// Of both averages.
constexpr Bytes kStatesOfElement{3};

/// On CPU two loops for each parameter, on CUDA as many own kernels. Otherwise there LibTorch's calls
/// (executor/optimizers/adamw_fp8_cuda.cpp), which move kFp32 bytes of an element beside gradients, parameters and
/// states.
Work work_of_adamw_fp8(const UnitUpdate& update) {
  constexpr std::int64_t kFirst = 12, kOfParameter = 13, kOfChunk = 43;  // launches
  constexpr Bytes kFp32{299};
  const Bytes each = 2 * dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage) + 3 * kStatesOfElement;
  const bool is_own = wants_own_kernel(update);  // with one before them, which counts
  if (update.device == DeviceKind::cpu || is_own) {
    return {.launches = 2 * update.parameters + (is_own ? 1 : 0),
            .bytes = static_cast<double>((update.elements * each).n)};
  }
  const std::int64_t chunks = checked_add(ceil_div(update.elements, kBlockStatesChunk), update.parameters - 1);
  return {.launches = kFirst + update.parameters * kOfParameter + chunks * kOfChunk,
          .bytes = static_cast<double>((update.elements * (each + kFp32)).n)};
}

std::int64_t scratch_of_adamw_fp8(const UnitUpdate& update) {
  constexpr std::int64_t kOfParameter = 4;  // its largest averages and its scales, for own kernels
  if (update.device == DeviceKind::cpu) return 0;
  if (wants_own_kernel(update)) return checked_mul(kOfParameter, update.parameters);
  return BlockScratch{.elements = update.elements, .block = kMaximaOf}.size();
}

}  // namespace

const Optimizer optimizers::adamw_fp8{.states = kStates,
                                      .work = work_of_adamw_fp8,
                                      .block = kMaximaOf,
                                      .scratch = scratch_of_adamw_fp8,
                                      .implementations = kFusedOnly,
                                      .pytorch = {},
                                      .pytorch_step = nullptr};

}  // namespace vramfit
