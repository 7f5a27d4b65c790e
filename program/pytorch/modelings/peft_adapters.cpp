#include "program/pytorch/modelings/peft_adapters.h"

#include <utility>
#include <variant>
#include <vector>

#include "program/stages/adapters.h"

namespace vramfit::eager {

Dtype dtype_of_loading(const Job& job) {
  return has_trl(job) && job.frozen_dtype ? *job.frozen_dtype : job.precision.compute;
}

Adapters::Adapters(Torch& torch, const Job& job)
    : torch_(torch),
      dtype_(job.runtime == Runtime::pytorch_fsdp2 ? job.precision.compute : job.precision.storage),
      quantized_{.compute = job.precision.compute, .original = dtype_of_loading(job)},
      drops_(job.lora.dropout > 0 && !has_pairs(job)),  // disable_dropout
      need_input_gradients_(has_adapters(job) && !std::holds_alternative<NoCheckpointing>(job.checkpointing)),
      rank_(job.lora.rank) {}

/// Linear.forward; over 4 bits, where all is in one dtype, Linear4bit.forward (tuners/lora/bnb.py).
Tensor Adapters::added(Tensor result, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                       std::int64_t outputs, const std::string& name) const {
  if (by.lora_a < 0 || !are_used_) return result;
  const bool is_quantized = torch_.is_quantized(by.weight);
  if (is_quantized) result = torch_.clone(result);
  torch_.reach({.name = name, .parameters = {}}, by.lora_a);  // whose dtype it asks for
  if (is_quantized) return torch_.add(result, change(x, by, inputs, outputs, name));
  const Tensor wide = torch_.cast(x, dtype_);
  const Dtype dtype = result.dtype;
  result = torch_.add(result, change(wide, by, inputs, outputs, name));
  return torch_.cast(result, dtype);
}

Tensor Adapters::quantized(const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                           std::int64_t outputs) const {
  return torch_.linear_4bit(x, by.weight, inputs, outputs, quantized_, by.bias);
}

/// A dropout of 0 is a module, too.
Tensor Adapters::change(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
                        const std::string& name) const {
  const auto within = [&](const char* module_name, std::vector<int> parameters, const Tensor& input, const auto& code) {
    const Submodule module{.name = name + module_name, .parameters = std::move(parameters)};
    return torch_.leave(module, code(torch_.enter(module, input)));
  };
  const auto dropped = [&] {
    return within(".lora_dropout", {}, x, [&](const Tensor& y) { return drops_ ? torch_.dropout(y) : y; });
  };
  const auto linear = [&](const char* module_name, int parameter, const Tensor& input, std::int64_t from,
                          std::int64_t to) {
    return within(module_name, {parameter}, input,
                  [&](const Tensor& y) { return torch_.linear(y, parameter, from, to); });
  };
  Tensor change = linear(".lora_A", by.lora_a, dropped(), inputs, rank_);
  change = linear(".lora_B", by.lora_b, change, rank_, outputs);
  return torch_.scale(change);
}

}  // namespace vramfit::eager
