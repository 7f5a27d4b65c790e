#include "program/pytorch/modelings/peft_adapters.h"

#include <variant>

#include "program/stages/adapters.h"

namespace vramfit::eager {

Dtype dtype_of_loading(const Job& job) {
  return job.modeling == Modeling::trl && job.frozen_dtype ? *job.frozen_dtype : job.precision.compute;
}

Adapters::Adapters(Torch& torch, const Job& job)
    : torch_(torch),
      dtype_(job.runtime == Runtime::pytorch_fsdp2 ? job.precision.compute : job.precision.storage),
      quantized_{.compute = job.precision.compute, .original = dtype_of_loading(job)},
      drops_(job.lora.dropout > 0),
      need_input_gradients_(has_adapters(job) && !std::holds_alternative<NoCheckpointing>(job.checkpointing)),
      rank_(job.lora.rank) {}

/// Linear.forward
Tensor Adapters::added(Tensor result, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                       std::int64_t outputs) const {
  if (by.lora_a < 0) return result;
  const Tensor wide = torch_.cast(x, dtype_);
  const Tensor more = change(wide, by, inputs, outputs);
  const Dtype dtype = result.dtype;
  result = torch_.add(result, more);
  return torch_.cast(result, dtype);
}

/// Linear4bit.forward, under autocast or with adapters gathered in the compute dtype.
Tensor Adapters::quantized(const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                           std::int64_t outputs) const {
  Tensor result = torch_.linear_4bit(x, by.weight, inputs, outputs, quantized_, by.bias);
  if (by.lora_a < 0) return result;
  result = torch_.clone(result);
  const Tensor more = change(x, by, inputs, outputs);
  return torch_.add(result, more);
}

Tensor Adapters::change(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) const {
  Tensor change = torch_.linear(drops_ ? torch_.dropout(x) : x, by.lora_a, inputs, rank_);
  change = torch_.linear(change, by.lora_b, rank_, outputs);
  return torch_.scale(change);
}

}  // namespace vramfit::eager
