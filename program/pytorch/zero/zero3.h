// DeepSpeed's ZeRO-3 (0.19) as transformers' Trainer sets it up: of each parameter a rank has a part in bf16 or fp16,
// or of an adapter in fp32, and all of it only around the modules that use it. Gradients go through a bucket to the
// rank's part of each, which lie in one flat tensor; those of the optimizer's groups are updated in fp32
// (deepspeed/runtime/zero/stage3.py). With offload_optimizer that is done in host memory; with offload_param the parts
// are there, too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/pytorch/wrappers/module_hooks.h"
#include "program/pytorch/wrappers/whole_model.h"
#include "program/pytorch/zero/zero3_coordinator.h"
#include "program/pytorch/zero/zero_numbers.h"
#include "program/stages/offload.h"

namespace vramfit::eager {

/// PeftModelForCausalLM, LoraModel, LlamaForCausalLM, LlamaModel; without adapters the last two.
std::vector<Submodule> outer_modules(const Job& job);

/// The rank's part of a parameter that was made whole; in host memory, if parts are there.
Tensor part_of(Heap& heap, const PartedParameter& parameter, const Tensor& whole, const Offload& offload);

class Zero3 final : public WholeModel, public ModuleHooks, private ZeroNumbers {
 public:
  Zero3(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules);

  void load() override;
  void begin_forward() override;
  Tensor leave_base(Tensor normed) override { return leave(modules_.back(), std::move(normed)); }
  /// A parameter that isn't whole is gathered for the causal model, and is its own, too, from then on.
  void look_at(int parameter) override { coordinator_.reach(modules_.at(modules_.size() - 2), parameter); }
  Tensor leave_model(Tensor output) override;
  void zero_gradients() override {}
  void forget_graph() override { coordinator_.forget_graph(); }
  void sync_gradients(bool is_last) override { is_last_ = is_last; }
  void finish_backward() override;
  void step(bool clip, const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) override;
  /// Parameters that stay whole are let go of while the order is recorded.
  bool settles_in_second() const override { return true; }
  /// The one that is being updated.
  std::vector<OptimizerGroup> groups() override;
  Tensor gradient_of(const Trained& /*parameter*/) override { return groups_[updated_].gradient; }
  std::vector<Trained*> updated() override;
  bool updates_on_host() const override { return offload_.states; }

  Tensor enter(const Submodule& module, Tensor input) override;
  Tensor leave(const Submodule& module, Tensor output) override;
  void reach(const Submodule& module, int parameter) override { coordinator_.reach(module, parameter); }
  Tensor values_of(int parameter) const override {
    return coordinator_.parameters()[coordinator_.place_of(parameter)].whole;
  }

 private:
  /// A part of one of the optimizer's groups, which is updated at once.
  struct Group {
    std::string name;
    std::size_t of_optimizer = 0;         // which of the optimizer's groups it is a part of
    std::vector<std::size_t> parameters;  // of the coordinator's
    std::int64_t elements = 0;
    Tensor flat;      // the rank's parts, as they are gathered
    Trained master;   // the same in fp32
    Tensor gradient;  // in fp32; with offload in host memory, for good
  };
  /// A gradient that waits for its reduction.
  struct Ready {
    std::size_t parameter = 0;
    Tensor gradient;
  };

  Heap& heap() { return torch().heap(); }
  void add_parameters();
  void add_groups(const std::vector<Trained*>& parameters, std::size_t of_optimizer);
  void make_parts();
  void part_whole_model();
  void flatten();
  void make_masters();
  void make_gradients();
  void take(int parameter);
  void reduce_bucket();
  void narrow_large();
  Tensor scattered();
  void keep_part(std::size_t parameter, const Tensor& flat);
  /// `waiting` goes on once the other of compute and the stream that reduces has done what it was given.
  void wait_on(Stream waiting);

  // zero3_offload.cpp
  void flatten_on_host();
  void make_masters_on_host();
  void make_gradients_on_host();
  Tensor widened_on_host(const Tensor& flat, const std::string& what);
  void send_to_host(std::size_t parameter, const Tensor& flat, Tensor& on_card);
  Tensor norm_on_way(const Tensor& gradient);
  void check_overflow_on_host();
  void sum_norms(const Group& group);
  void update_on_host(Group& group, const std::function<void()>& optimizer);
  void step_on_host(const std::function<void(Phase)>& enter, const std::function<void()>& optimizer);

  // zero3_step.cpp
  void check_overflow();
  void note_any(Tensor flags);
  Tensor norm_of(const Group& group);
  void update(Group& group, bool clips, const Tensor& norm, const std::function<void()>& optimizer);

  Dtype dtype_;          // of the model, and of gradients that are reduced: bf16 or fp16
  Dtype trained_dtype_;  // of what is trained: the same, or of adapters fp32
  std::int64_t ranks_, bucket_elements_;
  Offload offload_;
  Zero3Sizes sizes_;
  Stream gathering_, reducing_;
  Zero3Coordinator coordinator_;
  bool is_loaded_whole_;            // before it is parted
  std::vector<Submodule> modules_;  // around all others, from the root to the one without the output layer
  std::vector<Group> groups_;
  std::map<std::string, int> inputs_left_;  // by module: gradients that backward is still to see
  std::size_t updated_ = 0;                 // of groups_
  Tensor flat_, gradients_, bucket_, tracker_;
  std::vector<Tensor> gradient_parts_;  // by parameter
  std::vector<Tensor> norms_;           // with offload: likewise, of a step
  std::vector<Tensor> pooled_;          // with offload_param: pinned parts that were moved, which the pool keeps
  bool is_last_ = true;                 // of its step: the micro-batch
  bool accumulates_ = false;            // this micro-batch, to what those before it left
  std::vector<Ready> ready_;
  std::vector<Tensor> large_;  // of these, as they came, where they were converted
  std::int64_t ready_elements_ = 0;
  int collected_ = -1;  // the event after what was in the bucket was copied; -1: the bucket is free
  Tensor norm_;         // of the latest step
};

}  // namespace vramfit::eager
