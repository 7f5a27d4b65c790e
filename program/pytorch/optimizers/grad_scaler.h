// What keeps small gradients alive in fp16: torch.amp.GradScaler (torch 2.11, torch/amp/grad_scaler.py).
#pragma once

#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit::eager {

/// Who sums the mark up over ranks that have looked at their own gradients.
enum class MarkSum { nobody, tensors, scaler };  // tensors: DTensor's, of FSDP2; scaler: FSDP1's ShardedGradScaler

class GradScaler {
 public:
  /// scale: the loss times the factor, which the first call makes.
  Tensor scaled(Torch& torch, const Tensor& loss);
  /// unscale_: divides all gradients by the factor, and marks whether one overflowed; where gradients are in host
  /// memory, there.
  void unscale(Torch& torch, Wrapper& wrapper, MarkSum sum);
  /// The mark as step passes it to an optimizer that skips its update on the card, which holds it meanwhile. Others
  /// are asked on the host, for which nothing is made.
  Tensor mark_for_optimizer(Torch& torch);
  /// Raises the factor or lowers it, and lets go of the mark.
  void update(Torch& torch);

 private:
  void unscale_on_host(Heap& heap, Wrapper& wrapper);
  static void sum_over_ranks(Heap& heap, const Tensor& mark);
  /// The mark; a copy of it where it is in host memory.
  Tensor found_on_card(Torch& torch) const;

  bool is_on_host_ = false;
  Tensor scale_, growth_, found_;
};

}  // namespace vramfit::eager
