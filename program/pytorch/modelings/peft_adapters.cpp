#include "program/pytorch/modelings/peft_adapters.h"

#include <utility>
#include <variant>
#include <vector>

#include "base/text/units.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

Dtype dtype_of_loading(const Job& job) {
  return has_trl(job) && job.frozen_dtype ? *job.frozen_dtype : job.precision.compute;
}

Adapters::Adapters(Torch& torch, const Job& job)
    : torch_(torch),
      dtype_(job.runtime == Runtime::pytorch_fsdp2 ? job.precision.compute : job.precision.storage),
      quantized_{.compute = job.precision.compute, .original = dtype_of_loading(job)},
      has_dropout_(job.lora.dropout > 0),
      drops_(has_dropout_ && !has_pairs(job)),  // disable_dropout
      need_input_gradients_(has_adapters(job) && !std::holds_alternative<NoCheckpointing>(job.checkpointing)),
      rank_(job.lora.rank) {}

/// Linear.forward; over 4 bits, where all is in one dtype, Linear4bit.forward (tuners/lora/bnb.py).
Tensor Adapters::added(Tensor result, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                       std::int64_t outputs, const std::string& name) const {
  if (by.lora_a < 0 || !are_used_) return result;
  const bool is_quantized = torch_.is_quantized(by.weight);
  if (is_quantized) result = torch_.clone(result);
  torch_.reach({.name = name, .parameters = {}}, by.lora_a);  // whose dtype it asks for
  const auto sum = [&](const Tensor& input) {
    if (by.magnitudes >= 0) return redirected(result, input, by, inputs, outputs, name);
    return torch_.add(result, change(input, by, inputs, outputs, name));
  };
  if (is_quantized) return sum(x);
  const Tensor wide = torch_.cast(x, torch_.seen_dtype(by.lora_a).value_or(dtype_));
  const Dtype dtype = result.dtype;
  result = sum(wide);
  return torch_.cast(result, dtype);
}

Tensor Adapters::quantized(const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                           std::int64_t outputs) const {
  return torch_.linear_4bit(x, by.weight, inputs, outputs, quantized_, by.bias);
}

Tensor Adapters::dropped(const Tensor& x, const std::string& name) const {
  return within(name + ".lora_dropout", {}, x, [&](const Tensor& y) { return drops_ ? torch_.dropout(y) : y; });
}

Tensor Adapters::through(Tensor x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
                         const std::string& name) const {
  const auto linear = [&](const char* module_name, int parameter, const Tensor& input, std::int64_t from,
                          std::int64_t to) {
    return within(name + module_name, {parameter}, input,
                  [&](const Tensor& y) { return torch_.linear(y, parameter, from, to); });
  };
  const Tensor hidden = linear(".lora_A", by.lora_a, x, inputs, rank_);
  x = {};
  return linear(".lora_B", by.lora_b, hidden, rank_, outputs);
}

Tensor Adapters::change(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs,
                        const std::string& name) const {
  return torch_.scale(through(dropped(x, name), by, inputs, outputs, name));
}

/// DoraLinearVariant.forward and DoraLinearLayer.forward: the change is made whole, as if of an identity, to know how
/// long the rows of the sum are. The gradient doesn't go that way.
Tensor Adapters::redirected(const Tensor& result, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                            std::int64_t outputs, const std::string& name) const {
  const Tensor input = has_dropout_ ? dropped(x, name) : x;
  const auto direct = [&](const Tensor& entered) {
    const auto whole_change = [&] {
      const Tensor identity = torch_.identity(inputs, dtype_);
      return through(identity, by, inputs, outputs, name);
    };
    const Tensor change = torch_.cast(whole_change(), entered.dtype);
    const Tensor weight = torch_.frozen_in(by.weight, checked_mul(inputs, outputs), entered.dtype, quantized_.original);
    const Tensor norms = torch_.norms_with_change(by.weight, weight, change, outputs);
    const Tensor scale = torch_.parameter_over(by.magnitudes, norms, outputs);
    const Tensor adapted = through(entered, by, inputs, outputs, name);
    const auto share_of_base = [&] {
      if (has_dropout_) return torch_.linear_of_frozen(entered, by.weight, weight, inputs, outputs);
      return by.bias >= 0 ? torch_.minus_frozen(result, by.bias) : result;
    };
    const Tensor base = share_of_base();
    const Tensor of_base = torch_.row_times(torch_.add_scalar(scale), base);
    const Tensor of_change = torch_.scale(torch_.row_times(scale, adapted));
    return torch_.add(of_base, of_change);
  };
  const Tensor added = within(name + ".lora_magnitude_vector", {by.magnitudes}, input, direct);
  return torch_.add(result, added);
}

}  // namespace vramfit::eager
