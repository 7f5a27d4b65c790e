#include "program/pytorch/modelings/peft_adapters.h"

#include <variant>

#include "program/stages/adapters.h"

namespace vramfit::eager {

Adapters::Adapters(Torch& torch, const Job& job)
    : torch_(torch),
      dtype_(job.runtime == Runtime::pytorch_fsdp2 ? job.precision.compute : job.precision.storage),
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

Tensor Adapters::change(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) const {
  Tensor change = torch_.linear(drops_ ? torch_.dropout(x) : x, by.lora_a, inputs, rank_);
  change = torch_.linear(change, by.lora_b, rank_, outputs);
  return torch_.scale(change);
}

}  // namespace vramfit::eager
