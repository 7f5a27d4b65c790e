// PEFT's LoRA around the linears of transformers' models (tuners/lora/layer.py).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/pytorch/calls/torch.h"
#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

/// In which weights are loaded that bitsandbytes quantizes: by TRL as all others, else that of their products, whatever
/// what isn't quantized is converted to later.
Dtype dtype_of_loading(const Job& job);

class Adapters {
 public:
  Adapters(Torch& torch, const Job& job);

  /// A linear's `result` for x with what its adapter adds to it; the result itself where it has none. `name`: of the
  /// module around both.
  Tensor added(Tensor result, const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
               const std::string& name = "") const;
  /// The result of a linear in 4 bits, without what its adapter adds.
  Tensor quantized(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) const;
  /// Where layers are checkpointed over a frozen embedding (enable_input_require_grads).
  bool need_input_gradients() const { return need_input_gradients_; }
  /// From here on: whether they change anything (disable_adapter).
  void use(bool are_used) {
    are_used_ = are_used;
    were_left_out_ = were_left_out_ || are_used;
  }
  /// Whether the embedding's output is made to need a gradient once more, behind all other hooks and without autograd,
  /// too: when TRL has run the model without adapters, it turns checkpoints on again (transformers/modeling_utils.py:
  /// _activation_checkpointing_enable).
  bool need_input_gradients_again() const { return need_input_gradients_ && were_left_out_; }

 private:
  /// code(input) as the module `name` computes it, with its hooks.
  template <typename Code>
  Tensor within(const std::string& name, std::vector<int> parameters, const Tensor& input, const Code& code) const {
    const Submodule module{.name = name, .parameters = std::move(parameters)};
    return torch_.leave(module, code(torch_.enter(module, input)));
  }
  /// A dropout of 0 is a module, too.
  Tensor dropped(const Tensor& x, const std::string& name) const;
  /// lora_B(lora_A(x)); x is let go of in between, unless the caller holds it.
  Tensor through(Tensor x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
                 const std::string& name) const;

  /// What the adapter adds.
  Tensor change(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
                const std::string& name) const;
  /// `result` with what DoRA adds to it; with dropout, it makes the base's share anew.
  Tensor redirected(const Tensor& result, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                    std::int64_t outputs, const std::string& name) const;

  Torch& torch_;
  Dtype dtype_;
  QuantizedTypes quantized_;
  bool has_dropout_;
  bool drops_;  // what adapters read
  bool need_input_gradients_;
  bool are_used_ = true, were_left_out_ = false;
  std::int64_t rank_;
};

}  // namespace vramfit::eager
