// AdamW on GPUs by LibTorch's calls over one chunk of elements after the other, in scratch that the program has for
// them (program/optimizers/block_states.h), so that none allocates. How averages are kept is a derived class's affair.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "executor/optimizers/optimizers.h"
#include "program/optimizers/block_states.h"

namespace vramfit {

/// 1 - beta^steps in `number`, which is [1] fp64. In fp32 the second moment's would be off by 6e-5 in the first step.
/// It allocates nothing on GPUs.
at::Tensor bias_correction(at::Tensor number, const at::Tensor& steps, double beta);

class AdamwChunks {
 protected:
  struct Chunk {
    std::int64_t first = 0, count = 0;
  };
  static constexpr std::int64_t kMoments = 2;
  /// Places among the scratch's numbers; those from kFree on are the derived class's.
  static constexpr std::int64_t kStepSize = 8, kRoot = 9, kKeep = 10, kSkipped = 12, kFree = 16;

  AdamwChunks(OptimizerCall& call, std::int64_t block);

  /// Counts the update and finds what it needs of the count.
  void begin() const;
  /// A step that was skipped isn't counted.
  void end() const;

  /// The gradient, in fp32, divided; 0 where it overflowed.
  void read_gradient(at::Tensor& g) const;
  void move_averages(at::Tensor& m, at::Tensor& v, const at::Tensor& g) const;
  /// Works in rows 2 and 3. Parameters lose nothing where the step is skipped.
  void update_parameters(const at::Tensor& m, const at::Tensor& v) const;
  /// state = values, unless the step is skipped. Then row 2 is overwritten.
  void keep(at::Tensor state, const at::Tensor& values) const;

  at::Tensor part(ScratchPart part) const { return call_.scratch->narrow(0, part.begin, part.elements); }
  at::Tensor number(std::int64_t place) const { return part(scratch_.numbers()).narrow(0, place, 1); }
  /// [chunk] fp32.
  at::Tensor row(int which) const { return part(scratch_.row(which)).narrow(0, 0, chunk_.count); }
  at::Tensor state(std::int64_t which) const { return call_.states[static_cast<std::size_t>(which)]; }
  at::Tensor of_chunk(const at::Tensor& flat, std::int64_t covers) const {
    return flat.narrow(0, chunk_.first / covers, chunk_.count / covers);
  }

  OptimizerCall& call_;
  BlockScratch scratch_;
  Chunk chunk_;

 private:
  at::Tensor skipped() const;
  at::Tensor corrections() const { return part(scratch_.numbers()).narrow(0, 0, 4).view(at::kDouble); }
  at::Tensor correction(std::int64_t moment, double beta) const;
  at::Tensor wide_row(int which) const;
  void round_randomly(const RandomStretch& stretch) const;

  at::Tensor& steps_;
};

}  // namespace vramfit
