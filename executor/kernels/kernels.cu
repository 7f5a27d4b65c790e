// The library's one symbol.
#include "executor/kernels/functions.h"

namespace vramfit::cuda {

namespace {

constexpr Kernels kKernels{.count_update = count_update,
                           .update_plain = update_plain,
                           .update_rounding = update_rounding,
                           .update_coded = update_coded,
                           .begin_scaled = begin_scaled,
                           .update_scaled = update_scaled,
                           .adafactor_sums = adafactor_sums,
                           .adafactor_change_sums = adafactor_change_sums,
                           .adafactor_update = adafactor_update,
                           .read_scaled = read_scaled,
                           .round_scaled = round_scaled,
                           .dequantize = dequantize,
                           .gate = gate,
                           .gate_backward = gate_backward,
                           .rotate = rotate,
                           .drop = drop,
                           .cross_entropy = cross_entropy,
                           .cross_entropy_backward = cross_entropy_backward,
                           .rms_norm = rms_norm,
                           .rms_norm_backward = rms_norm_backward};

}  // namespace

extern "C" [[gnu::visibility("default")]] const Kernels* vramfit_kernels(int interface_version) {
  return interface_version == kInterface ? &kKernels : nullptr;
}

}  // namespace vramfit::cuda
