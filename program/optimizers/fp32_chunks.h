// Updates on GPUs by LibTorch's calls that take one dtype, where parameters, gradients and averages have several: one
// chunk of elements after the other becomes fp32 in scratch, is updated there, and is rounded once. What that takes;
// executor/optimizers/fp32_chunks.cpp does it.
#pragma once

#include <cstdint>

#include "program/optimizers/optimizers.h"

namespace vramfit {

inline bool is_of_one_dtype(const UnitUpdate& update) {
  return update.state == update.storage && update.gradient == update.storage;
}

inline bool is_in_fp32_chunks(const UnitUpdate& update) {
  return update.device == DeviceKind::cuda && !is_of_one_dtype(update);
}

/// Of an optimizer with so many averages of --state-dtype.
std::int64_t fp32_chunks_scratch(const UnitUpdate& update, std::int64_t averages);

/// `of_one_dtype` is what the calls take where all is in fp32, and `once` of its launches aren't done for each chunk.
Work work_of_fp32_chunks(const UnitUpdate& update, std::int64_t averages, Work (*of_one_dtype)(const UnitUpdate&),
                         std::int64_t once);

}  // namespace vramfit
