// Updates a flat tensor by an optimizer of the list, for comparisons with other libraries:
//   update_flat OPTIMIZER DTYPE DEVICE ELEMENTS STEPS OPTIONS IN OUT
// OPTIONS: "lr=0.001,beta1=0.9,...". IN: fp32 parameters, then the gradient of each step. OUT: fp32 parameters, then
// each state of as many numbers as there are elements, codes as the numbers that they stand for. DEVICE cuda: the
// function for GPUs, on the host's tensors.
#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/optimizers/block_codes.h"
#include "executor/optimizers/optimizers.h"
#include "job/fields/field_text.h"
#include "job/optimizers.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {
namespace {

struct Request {
  std::string optimizer, dtype, device;
  std::int64_t elements, steps;
  OptimizerOptions options;
};

at::ScalarType type_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  return name == "fp16" ? at::kHalf : at::kFloat;
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

void update(const Request& request, const std::string& from, const std::string& to) {
  const Optimizer& row = optimizer_named(request.optimizer);
  const std::size_t plus = request.dtype.find('+');
  const at::ScalarType storage = type_of(request.dtype.substr(0, plus));
  const at::ScalarType state = plus == std::string::npos ? storage : type_of(request.dtype.substr(plus + 1));
  std::ifstream in(from, std::ios::binary);
  at::Tensor parameters = read(in, request.elements).to(storage);
  std::vector<at::Tensor> states;
  for (const OptimizerState& each : row.states) {
    const at::ScalarType own = each.dtype == Dtype::u8 ? at::kByte : each.dtype == Dtype::f16 ? at::kHalf : at::kFloat;
    const bool is_count = each.holds == OptimizerState::Holds::updates;
    states.push_back(
        at::zeros({elements_of(each, one_vector(request.elements))}, is_count || each.dtype ? own : state));
  }
  const DeviceKind device = request.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  const Dtype numbers = Dtype::f32;
  const std::int64_t scratch = row.scratch == nullptr ? 0
                                                      : row.scratch({.elements = request.elements,
                                                                     .storage = numbers,
                                                                     .gradient = numbers,
                                                                     .state = numbers,
                                                                     .device = device});
  at::Tensor work = at::empty({scratch}, at::kFloat);
  const std::int64_t all = request.elements;
  const std::array rows{ParameterRows{.rows = all, .held_rows = all, .all_rows = all}};
  for (std::int64_t step = 0; step < request.steps; ++step) {
    at::Tensor gradients = read(in, request.elements).to(storage);
    OptimizerCall call{.parameters = parameters,
                       .gradients = gradients,
                       .states = states,
                       .gradient_divisor = nullptr,
                       .found_inf = nullptr,
                       .options = request.options,
                       .scratch = scratch > 0 ? &work : nullptr,
                       .rows = rows};
    optimizer_step(request.optimizer, device)(call);
  }
  std::vector<at::Tensor> results{parameters.to(at::kFloat)};
  for (const at::Tensor& result : shown(request, states)) results.push_back(result);
  std::ofstream out(to, std::ios::binary);
  for (const at::Tensor& result : results) {
    out.write(static_cast<const char*>(result.const_data_ptr()), static_cast<std::streamsize>(result.nbytes()));
  }
}

}  // namespace
}  // namespace vramfit

int main(int argc, char** argv) try {
  if (argc != 9) throw std::runtime_error("update_flat OPTIMIZER DTYPE DEVICE ELEMENTS STEPS OPTIONS IN OUT");
  vramfit::update({.optimizer = argv[1],
                   .dtype = argv[2],
                   .device = argv[3],
                   .elements = std::stoll(argv[4]),
                   .steps = std::stoll(argv[5]),
                   .options = vramfit::options_of(argv[6], argv[1])},
                  argv[7], argv[8]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
