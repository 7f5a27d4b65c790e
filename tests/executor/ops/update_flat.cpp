// Updates a flat tensor by an optimizer of the list, for comparisons with other libraries:
//   update_flat OPTIMIZER DTYPE DEVICE ELEMENTS STEPS OPTIONS IN OUT
// OPTIMIZER may have a form: adamw:foreach, adamw:loop. DTYPE: of all, or STORAGE+STATE, or STORAGE+STATE+GRADIENT.
// OPTIONS: "lr=0.001,beta1=0.9,...". IN: fp32 parameters, then
// the gradient of each step. OUT: fp32 parameters, then each state of as many numbers as there are elements, codes as
// the numbers that they stand for. DEVICE cuda: the function for GPUs, on the host's tensors.
//   update_flat time OPTIMIZER DTYPE ELEMENTS STEPS
// prints the seconds that the fastest of the updates took on the CPU.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/optimizers/block_codes.h"
#include "executor/optimizers/optimizers.h"
#include "job/fields/field_text.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {
namespace {

struct Request {
  std::string optimizer, dtype, device;  // the optimizer without its form
  OptimizerImplementation form;
  std::int64_t elements, steps;
  OptimizerOptions options;
};

OptimizerImplementation form_of(const std::string& optimizer) {
  if (optimizer.ends_with(":foreach")) return OptimizerImplementation::foreach;
  return optimizer.ends_with(":loop") ? OptimizerImplementation::loop : OptimizerImplementation::fused;
}

at::ScalarType type_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  return name == "fp16" ? at::kHalf : at::kFloat;
}

Dtype dtype_of(at::ScalarType type) {
  if (type == at::kBFloat16) return Dtype::bf16;
  return type == at::kHalf ? Dtype::f16 : Dtype::f32;
}

/// Of parameters, states and gradients.
std::array<std::string, 3> dtypes_of(const std::string& text) {
  const std::vector<std::string> parts = split_list(text, '+');
  const std::string& state = parts.size() > 1 ? parts[1] : parts[0];
  return {parts[0], state, parts.size() > 2 ? parts[2] : parts[0]};
}

OptimizerOptions options_of(const std::string& text, const std::string& optimizer) {
  OptimizerOptions options;
  for (const std::string& part : split_list(text)) {
    const std::size_t equals = part.find('=');
    const double value = std::stod(part.substr(equals + 1));
    if (part.starts_with("lr=")) {
      options.learning_rate = value;
    } else {
      options.values[part.substr(0, equals)] = value;
    }
  }
  return complete_options(options, optimizer);
}

at::Tensor read(std::ifstream& in, std::int64_t elements) {
  at::Tensor numbers = at::empty({elements}, at::kFloat);
  in.read(static_cast<char*>(numbers.data_ptr()), static_cast<std::streamsize>(4 * elements));
  if (!in) throw std::runtime_error("too few numbers");
  return numbers;
}

/// What a state of codes stands for: values of its map times scales.
template <typename Values>
at::Tensor decoded(const at::Tensor& codes, const at::Tensor& scales, const Values& values, std::int64_t per_byte) {
  const at::Tensor table = at::from_blob(const_cast<float*>(values.data()), {static_cast<std::int64_t>(values.size())});
  at::Tensor numbers = codes.to(at::kLong);
  if (per_byte == 2) numbers = at::stack({numbers.bitwise_and(0xF), numbers.bitwise_right_shift(4)}, 1).flatten();
  return (table.index_select(0, numbers).view({scales.numel(), -1}) * scales.unsqueeze(1)).flatten();
}

std::vector<at::Tensor> shown(const Request& request, const std::vector<at::Tensor>& states) {
  if (request.optimizer == "adamw-8bit") {
    return {decoded(states[0], states[2], DynamicCodes<7, true>::kValues, 1),
            decoded(states[1], states[3], DynamicCodes<7, false>::kValues, 1)};
  }
  if (request.optimizer == "adamw-4bit") {
    return {decoded(states[0], states[2], DynamicCodes<3, true>::kValues, 2),
            decoded(states[1], states[3], SixteenthCodes::kValues, 2)};
  }
  if (request.optimizer == "adamw-fp8-blocks") {
    return {decoded(states[0], states[2], E4m3Codes<true>::kValues, 1),
            decoded(states[1], states[3], E4m3Codes<false>::kValues, 1)};
  }
  if (request.optimizer == "adamw-fp8") {
    return {states[0].view(at::kFloat8_e4m3fn).to(at::kFloat) * states[2], states[1].to(at::kFloat) * states[3]};
  }
  std::vector<at::Tensor> whole;
  for (const at::Tensor& state : states) {
    if (state.numel() == request.elements) whole.push_back(state.to(at::kFloat));
  }
  return whole;
}

/// A unit of one parameter.
Unit one_vector(std::int64_t elements) {
  Unit unit;
  unit.trainable_elements = elements;
  UnitParameter p;
  p.rows = p.rows_per_rank = p.shard_elements = elements;
  p.row_elements = 1;
  unit.parameters.push_back(p);
  return unit;
}

/// A tensor that is updated, with what the optimizer keeps for it.
class Flat {
 public:
  Flat(const Request& request, const at::Tensor& numbers)
      : request_(request),
        storage_(type_of(dtypes_of(request.dtype).front())),
        gradient_(type_of(dtypes_of(request.dtype).back())),
        device_(request.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu),
        parameters_(numbers.to(storage_)) {
    const Optimizer& row = optimizer_named(request.optimizer);
    const at::ScalarType state = type_of(dtypes_of(request.dtype)[1]);
    for (const OptimizerState& each : row.states) {
      const at::ScalarType own = each.dtype == Dtype::u8    ? at::kByte
                                 : each.dtype == Dtype::f16 ? at::kHalf
                                                            : at::kFloat;
      const bool is_count = each.holds == OptimizerState::Holds::updates;
      states_.push_back(
          at::zeros({elements_of(each, one_vector(request.elements))}, is_count || each.dtype ? own : state));
    }
    const UnitUpdate scratch{.elements = request.elements,
                             .storage = dtype_of(storage_),
                             .gradient = dtype_of(gradient_),
                             .state = dtype_of(state),
                             .device = device_,
                             .form = request.form};
    work_ = at::empty({row.scratch == nullptr ? 0 : row.scratch(scratch)}, at::kFloat);
  }

  void step(const at::Tensor& gradient) {
    at::Tensor gradients = gradient.to(gradient_);
    const std::array rows{
        ParameterRows{.rows = request_.elements, .held_rows = request_.elements, .all_rows = request_.elements}};
    OptimizerCall call{.parameters = parameters_,
                       .gradients = gradients,
                       .states = states_,
                       .gradient_divisor = nullptr,
                       .found_inf = nullptr,
                       .options = request_.options,
                       .scratch = work_.numel() > 0 ? &work_ : nullptr,
                       .rows = rows};
    optimizer_step(request_.optimizer, device_, KernelSource::libtorch, request_.form)(call);
  }

  at::ScalarType gradient() const { return gradient_; }
  const at::Tensor& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& states() const { return states_; }

 private:
  Request request_;
  at::ScalarType storage_, gradient_;
  DeviceKind device_;
  at::Tensor parameters_, work_;
  std::vector<at::Tensor> states_;
};

void update(const Request& request, const std::string& from, const std::string& to) {
  std::ifstream in(from, std::ios::binary);
  Flat flat(request, read(in, request.elements));
  for (std::int64_t step = 0; step < request.steps; ++step) flat.step(read(in, request.elements));
  std::vector<at::Tensor> results{flat.parameters().to(at::kFloat)};
  for (const at::Tensor& result : shown(request, flat.states())) results.push_back(result);
  std::ofstream out(to, std::ios::binary);
  for (const at::Tensor& result : results) {
    out.write(static_cast<const char*>(result.const_data_ptr()), static_cast<std::streamsize>(result.nbytes()));
  }
}

void time_updates(const Request& request) {
  Flat flat(request, at::randn({request.elements}));
  const at::Tensor gradient = at::randn({request.elements}).to(flat.gradient());
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t step = 0; step < request.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    flat.step(gradient);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("%.9f\n", best);
}

}  // namespace
}  // namespace vramfit

int main(int argc, char** argv) try {
  if (argc == 6 && std::string(argv[1]) == "time") {
    vramfit::time_updates({.optimizer = argv[2],
                           .dtype = argv[3],
                           .device = "cpu",
                           .form = vramfit::OptimizerImplementation::fused,
                           .elements = std::stoll(argv[4]),
                           .steps = std::stoll(argv[5]),
                           .options = vramfit::options_of("lr=0.001", argv[2])});
    return 0;
  }
  if (argc != 9) throw std::runtime_error("update_flat OPTIMIZER DTYPE DEVICE ELEMENTS STEPS OPTIONS IN OUT");
  const std::string optimizer = argv[1];
  vramfit::update({.optimizer = optimizer.substr(0, optimizer.find(':')),
                   .dtype = argv[2],
                   .device = argv[3],
                   .form = vramfit::form_of(optimizer),
                   .elements = std::stoll(argv[4]),
                   .steps = std::stoll(argv[5]),
                   .options = vramfit::options_of(argv[6], optimizer.substr(0, optimizer.find(':')))},
                  argv[7], argv[8]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
