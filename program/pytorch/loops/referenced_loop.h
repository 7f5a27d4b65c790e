// What TRL's DPOTrainer and GRPOTrainer share: rows that are scored beside training by a reference, which is the model
// without its adapters or a second model.
#pragma once

#include <memory>
#include <utility>

#include "program/pytorch/loops/reference_model.h"
#include "program/pytorch/loops/scored_loop.h"
#include "program/pytorch/wrappers/whole_model.h"

namespace vramfit::eager {

class ReferencedLoop : public ScoredLoop {
 public:
  void load_first() override {
    if (second_ != nullptr && !is_moved_first()) second_->load();
  }
  void prepare() override {
    ScoredLoop::prepare();
    if (second_ != nullptr && is_moved_first()) second_->load();
  }
  void micro_batch(Place place) override {
    ScoredLoop::micro_batch(place);
    if (place.is_last && second_ != nullptr) second_->end_step();
  }

 protected:
  /// `has_second`: whether there is a second model; `scores_itself`: whether the trained one scores beside training.
  ReferencedLoop(LoopParts parts, bool has_second, bool scores_itself) : ScoredLoop(std::move(parts)) {
    if (has_second) second_ = std::make_unique<ReferenceModel>(parts_);
    if (!scores_itself || has_parts()) return;
    unwrapped_ = std::make_unique<WholeModel>(parts_.torch, parts_.graph, parts_.job, parts_.model.modules());
  }

  /// What the trained model returns for `inputs`, with its adapters or without, and without checkpoints.
  Outputs scored_by_itself(const Inputs& inputs, bool uses_adapters, Torch::ScoresWanted wanted) {
    Wrapper& wrapper = unwrapped_ == nullptr ? parts_.wrapper : *unwrapped_;
    parts_.model.use_adapters(uses_adapters);
    Outputs outputs = returned(wrapper, forward_with_scores({parts_.model, wrapper, false}, inputs, wanted));
    parts_.model.use_adapters(true);
    return outputs;
  }
  bool has_second() const { return second_ != nullptr; }
  /// Log-probabilities alone.
  Outputs scored_by_second(const Inputs& inputs) {
    return second_->with_its_parameters([&](Model& model, Wrapper& wrapper) {
      return returned(wrapper, forward_with_scores({model, wrapper, false}, inputs,
                                                   {.entropy = false, .mean_logits = false, .is_top = false}));
    });
  }

 private:
  std::unique_ptr<ReferenceModel> second_;
  std::unique_ptr<WholeModel> unwrapped_;  // not sharded: the model without what is around it
};

}  // namespace vramfit::eager
