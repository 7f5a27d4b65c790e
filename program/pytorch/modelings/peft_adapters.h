// PEFT's LoRA around the linears of transformers' models (tuners/lora/layer.py).
#pragma once

#include <string>

#include "program/pytorch/modelings/segment_reader.h"
#include "program/pytorch/torch.h"

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
  /// What the adapter adds; `name` as above.
  Tensor change(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
                const std::string& name = "") const;
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
  Torch& torch_;
  Dtype dtype_;
  QuantizedTypes quantized_;
  bool drops_;  // what adapters read
  bool need_input_gradients_;
  bool are_used_ = true, were_left_out_ = false;
  std::int64_t rank_;
};

}  // namespace vramfit::eager
