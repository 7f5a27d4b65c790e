// DeepSpeed's ZeRO-3 (0.19) as transformers' Trainer sets it up: of each parameter a rank has a part in bf16 or fp16,
// and all of it only around the modules that use it. Gradients go through a bucket to the rank's part of each, which
// lie in one flat tensor; those of the optimizer's groups are updated in fp32 (deepspeed/runtime/zero/stage3.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/pytorch/module_hooks.h"
#include "program/pytorch/whole_model.h"
#include "program/pytorch/zero3_coordinator.h"
#include "program/pytorch/zero_numbers.h"

namespace vramfit::eager {

class Zero3 final : public WholeModel, public ModuleHooks, private ZeroNumbers {
 public:
  Zero3(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules);

  void load() override;
  void begin_forward() override;
  /// The model without its output layer ends.
  Tensor pre_output(Tensor normed) override { return leave(model_, std::move(normed)); }
  void wrap_outputs(Tensor& loss, Tensor& logits) override;
  void zero_gradients() override {}
  void finish_backward() override;
  void step(bool clip, const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) override;
  /// Parameters that stay whole are let go of while the order is recorded.
  bool settles_in_second() const override { return true; }
  /// The one that is being updated.
  std::vector<OptimizerGroup> groups() override;

  Tensor enter(const Submodule& module, Tensor input) override;
  Tensor leave(const Submodule& module, Tensor output) override;
  Tensor values_of(int parameter) const override {
    return coordinator_.parameters()[coordinator_.place_of(parameter)].whole;
  }

 private:
  /// A part of one of the optimizer's groups, which is updated at once.
  struct Group {
    std::string name;
    std::vector<std::size_t> parameters;  // of the coordinator's
    std::int64_t elements = 0;
    Tensor flat;      // the rank's parts, in the model's type
    Trained master;   // the same in fp32
    Tensor gradient;  // in fp32
  };
  /// A gradient that waits for its reduction.
  struct Ready {
    std::size_t parameter = 0;
    Tensor gradient;
  };

  Heap& heap() { return torch().heap(); }
  void add_groups(const std::vector<Trained*>& parameters);
  void make_parts();
  void flatten();
  void make_masters();
  void take(int parameter);
  void reduce_bucket();
  Tensor scattered();

  // zero3_step.cpp
  void check_overflow();
  void note_any(Tensor flags);
  Tensor norm_of(const Group& group);
  void update(Group& group, bool clips, const Tensor& norm, const std::function<void()>& optimizer);

  Dtype dtype_;  // of the model: bf16 or fp16
  std::int64_t ranks_, bucket_elements_;
  Zero3Coordinator coordinator_;
  Submodule root_{.name = "root", .parameters = {}, .is_called_by_names = true};
  Submodule model_{.name = "model", .parameters = {}, .is_called_by_names = true};
  std::vector<Group> groups_;
  std::size_t updated_ = 0;  // of groups_
  Tensor flat_, gradients_, bucket_, tracker_;
  std::vector<Tensor> gradient_parts_;  // by parameter
  bool accumulates_ = false;            // this micro-batch, to what those before it left
  std::vector<Ready> ready_;
  std::int64_t ready_elements_ = 0;
  int collected_ = -1;  // the event after what was in the bucket was copied; -1: the bucket is free
  Tensor norm_;         // of the latest step
};

}  // namespace vramfit::eager
