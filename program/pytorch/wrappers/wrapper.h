// What PyTorch's runtimes differ in: what is done around the modules of a model, and with its parameters and gradients.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// Parameters by index in the graph, in the order in which the module holds them.
struct Module {
  std::string name;
  std::vector<int> parameters;
  /// What the model holds behind them, in modules of their own that aren't among these (learned positions).
  std::vector<int> beside = {};
  /// Of the last one: with PEFT around the model, accelerate finds its norm, too (utils/fsdp_utils.py:
  /// _find_final_norm).
  bool is_found_in_peft = false;

  /// All of these.
  std::vector<int> all() const {
    std::vector<int> list = parameters;
    list.insert(list.end(), beside.begin(), beside.end());
    return list;
  }
};

/// What the optimizer updates: a parameter, or the rank's shard of it.
struct Trained {
  int parameter = -1;
  std::string name;
  std::int64_t elements = 0;
  bool keeps_wide_states = false;  // of bitsandbytes: the Trainer registers embeddings as such
  Tensor value, exp_avg, exp_avg_sq, step;
  std::vector<Tensor> scales = {};  // of averages in 8 bits, and what they share with other parameters
  std::int64_t columns = 0;         // of a matrix, or of whole rows of one; 0: a vector, or another part
};

/// Parameters that the optimizer updates together, and the buffers that hold their gradients, once each.
struct OptimizerGroup {
  std::vector<Trained*> parameters;
  std::vector<Tensor> gradients;
};

/// The Trainer's groups: weights decay, and norms and biases don't (transformers/trainer_pt_utils.py), which are all
/// vectors but sinks and magnitudes, and biases of all experts. In the order of `trained`.
struct ByDecay {
  std::vector<Trained*> decaying, others;
};
inline ByDecay split_by_decay(const std::vector<Trained*>& trained, const Graph& graph) {
  ByDecay split;
  for (Trained* p : trained) {
    const Parameter& parameter = graph.parameters[static_cast<std::size_t>(p->parameter)];
    const bool is_like_matrix =
        parameter.name.ends_with(".sinks") || parameter.name.ends_with(".lora_magnitude_vector");
    const bool is_vector = parameter.shape.size() == 1 && !is_like_matrix;
    const bool is_bias = parameter.name.ends_with("_bias");
    (is_vector || is_bias ? split.others : split.decaying).push_back(p);
  }
  return split;
}

class Wrapper {
 public:
  Wrapper() = default;
  Wrapper(const Wrapper&) = delete;
  Wrapper& operator=(const Wrapper&) = delete;
  Wrapper(Wrapper&&) = delete;
  Wrapper& operator=(Wrapper&&) = delete;
  virtual ~Wrapper() = default;

  /// Makes all parameters, module by module.
  virtual void load() = 0;
  /// What a model's buffers are converted to before its first forward; nothing: they stay as they are.
  virtual std::optional<Dtype> dtype_of_buffers() const { return std::nullopt; }
  /// Before what the model is called with is converted.
  virtual void enter_model() {}
  /// Around the model's forward.
  virtual void begin_forward() {}
  virtual void end_forward(const Tensor& /*logits*/) {}
  /// Before that, and before what the model returns is converted: its own module has run.
  virtual void end_module(const Tensor& /*output*/) {}
  /// Around a module's forward; what pre_forward returns is the input as the module sees it.
  virtual Tensor pre_forward(std::size_t /*module*/, Tensor input) { return input; }
  virtual void post_forward(std::size_t /*module*/, const Tensor& /*output*/) {}
  /// The model without its output layer ends: what it returns, as its caller sees it.
  virtual Tensor leave_base(Tensor normed) { return normed; }
  /// Between the last norm and the output layer, which are one module otherwise: the norm's result as the layer sees
  /// it.
  virtual Tensor pre_output(Tensor normed) { return normed; }
  /// Behind the output layer, where pre_output has been before it and it is a unit of its own.
  virtual void post_output(const Tensor& /*logits*/) {}
  /// The model around all modules looks at a parameter of one that it doesn't run.
  virtual void look_at(int /*parameter*/) {}
  /// All of a frozen parameter, gathered by itself where nothing else has gathered it; otherwise nothing.
  virtual Tensor gathered_alone(int /*parameter*/) { return {}; }
  /// The model ends: of what it returns, what leads to the loss, as the loop sees it.
  virtual Tensor leave_model(Tensor output) { return output; }
  /// Before loss.backward() returns.
  virtual void finish_backward() {}
  /// What a model with a loss of its own returns, on its way to the loop, which doesn't keep the logits.
  virtual void wrap_outputs(Tensor& /*loss*/, Tensor& /*logits*/) {}
  /// Whether wrap_outputs copies them, and so would copy all tensors that a model returns.
  virtual bool copies_outputs() const { return false; }
  virtual void zero_gradients() = 0;
  /// From here on, `update` is called within backward with each parameter whose gradient is there, which is let go of
  /// then (register_post_accumulate_grad_hook).
  virtual void update_in_backward(const std::function<void(Trained&)>& /*update*/) {}
  /// Whether the next backward is the last before an update: only then are gradients reduced over ranks.
  virtual void sync_gradients(bool /*is_last*/) {}

  /// In the order in which the model holds its parameters.
  virtual std::vector<Trained*> trained() = 0;
  /// All that the optimizer ever updates: the same, unless an engine has the optimizer update partitions of its own.
  virtual std::vector<Trained*> updated() { return trained(); }
  /// The buffers that hold their gradients, once each, in any order.
  virtual std::vector<Tensor> gradients() = 0;
  /// The one of them that has the gradient of what trained() gave.
  virtual Tensor gradient_of(const Trained& parameter) = 0;
  /// The optimizer's groups, in the order in which it has them.
  virtual std::vector<OptimizerGroup> groups() { return {{trained(), gradients()}}; }
  /// Whether the second forward and backward of a run leave more than they find, as the first ones do.
  virtual bool settles_in_second() const { return false; }
  /// What the second forward of a model that isn't trained leaves more than the first, at the end of a step that had
  /// but one.
  virtual void settle() {}
  /// Whether parameters, gradients and states are in host memory, and the CPU updates (host_update.h).
  virtual bool updates_on_host() const { return false; }
  /// What an engine around the model does for a step, where it does that itself (DeepSpeed): `optimizer` updates what
  /// groups() gives then; `enter` names the phase.
  virtual void step(bool /*clip*/, const std::function<void(Phase)>& /*enter*/,
                    const std::function<void()>& /*optimizer*/) {}
  /// The loss is gone, and what autograd's graph had with it.
  virtual void forget_graph() {}
  /// Whether gradients are clipped by clip(), which returns their norm before.
  virtual bool clips_itself() const { return false; }
  virtual Tensor clip() { return {}; }
  /// The norms of all ranks' gradients from those of this rank's, as clip_grad_norm_ wants them.
  virtual Tensor reduced_norms(Tensor norms) { return norms; }
};

/// Wraps a model's modules.
using MakeWrapper = std::unique_ptr<Wrapper> (*)(Torch& torch, const Graph& graph, const Job& job,
                                                 const std::vector<Module>& modules);

}  // namespace vramfit::eager
