// The tensors of a model's class: every trainable tensor and every buffer by its checkpoint name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_specs/dtype.h"
#include "model_specs/spec.h"

namespace vramfit {

/// A tensor of the module that isn't trained. `persistent` ones are in the checkpoint.
struct NamedBuffer {
  std::string name;
  std::vector<std::int64_t> shape;
  Dtype dtype = Dtype::f32;  // as the module creates it when its parameters are fp32
  bool persistent = false;
};

/// The trainable tensors of the class that `spec.architecture` names, in transformers 5.23's named_parameters() order
/// and with its names; a tied weight appears once, at its first position.
std::vector<NamedShape> parameters(const ModelSpec& spec);

/// Elements of `parameters(spec)`. Throws ModelError when they overflow 64 bits.
std::int64_t parameter_count(const ModelSpec& spec);

/// The buffers of the same class (rotary frequencies, position ids, routing biases).
std::vector<NamedBuffer> buffers(const ModelSpec& spec);

/// The same model as the class without a head that transformers' AutoModel returns (LlamaModel, BertModel).
ModelSpec without_head(const ModelSpec& spec);

}  // namespace vramfit
