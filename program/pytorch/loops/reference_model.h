// The reference model of TRL's DPOTrainer and GRPOTrainer, which is a second one beside the trained one.
#pragma once

#include <cstdint>
#include <memory>

#include "program/pytorch/loops/loop.h"

namespace vramfit::eager {

/// Its weights are as the first one's, and whole on each GPU, or with FSDP2 sharded as one unit; under DeepSpeed's
/// ZeRO-3, parted (trl/models/utils.py: prepare_fsdp, prepare_deepspeed).
class ReferenceModel {
 public:
  explicit ReferenceModel(const LoopParts& parts);

  void load();
  /// At the end of each step. If the first has but one forward, what a second one leaves is made then.
  void end_step();
  /// A forward. Until the end of `use`, what names a parameter finds this model's.
  template <typename Use>
  auto with_its_parameters(const Use& use) {
    ++forwards_;
    torch_.exchange_models();
    auto made = use(*model_, *wrapper_);
    torch_.exchange_models();
    return made;
  }

 private:
  Torch& torch_;
  const Graph graph_;  // without dropout
  std::unique_ptr<Model> model_;
  std::unique_ptr<Wrapper> wrapper_;
  std::int64_t forwards_ = 0;
  bool is_settled_ = false;
};

}  // namespace vramfit::eager
