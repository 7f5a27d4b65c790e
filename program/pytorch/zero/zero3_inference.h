// A model that DeepSpeed's ZeRO-3 (0.19) runs without training it (DeepSpeedZeRoOffload alone): of each parameter a
// rank has a part, and all of it around the modules that use it.
#pragma once

#include <vector>

#include "program/pytorch/wrappers/module_hooks.h"
#include "program/pytorch/wrappers/whole_model.h"
#include "program/pytorch/zero/zero3_coordinator.h"
#include "program/stages/offload.h"

namespace vramfit::eager {

class Zero3Inference final : public WholeModel, public ModuleHooks {
 public:
  Zero3Inference(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules);

  void load() override;
  void begin_forward() override;
  Tensor leave_base(Tensor normed) override { return leave(modules_.back(), std::move(normed)); }
  void look_at(int parameter) override { coordinator_.reach(modules_.at(modules_.size() - 2), parameter); }
  Tensor leave_model(Tensor output) override;
  /// The end of the first step. Its second forward would gather what stays whole from then on, and all later ones find
  /// it: that is counted here, as all later steps are to be alike.
  void settle() override;

  Tensor enter(const Submodule& module, Tensor input) override;
  Tensor leave(const Submodule& module, Tensor output) override;
  void reach(const Submodule& module, int parameter) override { coordinator_.reach(module, parameter); }
  Tensor values_of(int parameter) const override {
    return coordinator_.parameters()[coordinator_.place_of(parameter)].whole;
  }

 private:
  Offload offload_;
  Zero3Coordinator coordinator_;
  std::vector<Submodule> modules_;  // around all others
};

}  // namespace vramfit::eager
