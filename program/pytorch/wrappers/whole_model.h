// A model that is whole on its GPU: its parameters, and their gradients and states beside them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/wrappers/wrapper.h"
#include "program/stages/trainable.h"

namespace vramfit::eager {

class WholeModel : public Wrapper {
 public:
  /// `name`: what labels of its parameters begin with.
  WholeModel(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules,
             std::string name = "model");

  void load() override;
  void zero_gradients() override;
  void update_in_backward(const std::function<void(Trained&)>& update) override;
  std::vector<Trained*> trained() override;
  std::vector<Tensor> gradients() override { return group(trained()).gradients; }
  /// The Trainer's weights decay apart from its vectors, which don't (transformers/trainer_pt_utils.py).
  std::vector<OptimizerGroup> groups() override;
  Tensor gradient_of(const Trained& p) override { return torch_.gradient(p.parameter); }

 protected:
  /// All parameters, in the order in which the model holds them; the `value` of quantized ones is their codes.
  const std::vector<Trained>& parameters() const { return parameters_; }
  std::vector<Trained>& parameters() { return parameters_; }
  bool is_quantized(const Trained& p) const { return held(p).quantization != nullptr; }
  Torch& torch() { return torch_; }

 private:
  const HeldParameter& held(const Trained& p) const { return held_[static_cast<std::size_t>(p.parameter)]; }
  OptimizerGroup group(std::vector<Trained*> parameters) const;
  void load(Trained& p);
  /// What is held in another type than it was loaded in.
  void widen();

  Torch& torch_;
  const Graph& graph_;
  std::string name_;
  bool has_groups_of_trainer_, has_torchaos_codes_, makes_magnitudes_;
  std::optional<Dtype> loaded_dtype_;  // of what isn't trained or quantized; none: the type in which it is held
  std::vector<HeldParameter> held_;
  std::vector<Trained> parameters_;
  std::vector<Tensor> quantized_;  // what belongs to quantized ones beside their codes
};

}  // namespace vramfit::eager
