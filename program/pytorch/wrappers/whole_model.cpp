#include "program/pytorch/wrappers/whole_model.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "program/pytorch/calls/nf4.h"

namespace vramfit::eager {

namespace {

bool is_embedding(const Graph& graph, int parameter) {
  return std::ranges::any_of(graph.segments.front().ops, [&](const Op& op) {
    const bool is_table =
        op.kind == OpKind::embedding || op.kind == OpKind::position_embedding || op.kind == OpKind::type_embedding;
    return is_table && op.parameters.front().parameter == parameter;
  });
}

/// The Trainer's optimizer, and not that of DeepSpeed's configuration, has two groups (runtime/engine.py:
/// _configure_basic_optimizer).
bool has_own_groups(const Job& job) {
  return has_trainer(job) && job.optimizer_implementation != OptimizerImplementation::deepspeed;
}

/// A checkpoint in 16 bits of which bitsandbytes has quantized the matrices of layers, and peft/utils/other.py:
/// prepare_model_for_kbit_training makes fp32 of the rest, before there are adapters.
bool widens_after_loading(const Job& job) {
  return uses_accelerate(job) && !has_trl(job) && job.method == Method::qlora && job.precision.compute != Dtype::f32;
}

}  // namespace

WholeModel::WholeModel(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules,
                       std::string name)
    : torch_(torch),
      graph_(graph),
      name_(std::move(name)),
      has_groups_of_trainer_(has_own_groups(job)),
      has_torchaos_codes_(job.modeling == Modeling::torchtune),
      makes_magnitudes_(job.lora.has_magnitudes),
      loaded_dtype_(widens_after_loading(job) ? std::optional(job.precision.compute) : std::nullopt),
      held_(held_parameters(graph, job)) {
  for (const Module& module : modules) {
    for (const int index : module.all()) {
      const Parameter& parameter = graph.parameters[static_cast<std::size_t>(index)];
      parameters_.push_back({.parameter = index,
                             .name = parameter.name,
                             .elements = element_count(parameter),
                             .keeps_wide_states = has_trainer(job) && is_embedding(graph, index),
                             .value = {},
                             .exp_avg = {},
                             .exp_avg_sq = {},
                             .step = {},
                             .columns = parameter.shape.size() == 2 ? parameter.shape.back() : 0});
    }
  }
}

void WholeModel::load() {
  const Scope scope(torch_.heap(), name_);
  const auto has_turn = [&](const Trained& p, bool are_adapters) {
    return !loaded_dtype_ || held(p).trainable == are_adapters;
  };
  for (Trained& p : parameters_) {
    if (has_turn(p, false)) load(p);
  }
  if (loaded_dtype_) {
    widen();
    for (Trained& p : parameters_) {
      if (has_turn(p, true)) load(p);
    }
  }
  // Weights in 4 bits are on the GPU when PEFT measures their rows (tuners/lora/dora.py: update_layer).
  if (makes_magnitudes_ && !quantized_.empty()) torch_.multiply_before_training();
}

void WholeModel::load(Trained& p) {
  if (const Quantization* const format = held(p).quantization; format != nullptr) {
    std::vector<Tensor> made = has_torchaos_codes_ ? make_nf4(torch_, p.parameter, p.elements, p.name)
                                                   : torch_.make_quantized(p.parameter, p.elements, *format, p.name);
    p.value = std::move(made.front());
    std::move(made.begin() + 1, made.end(), std::back_inserter(quantized_));
    return;
  }
  const bool trains = held(p).trainable;
  p.value = torch_.heap().make(p.elements, trains ? held(p).dtype : loaded_dtype_.value_or(held(p).dtype),
                               Category::parameters, p.name);
  torch_.heap().run("aten::normal_", {writes(p.value)});
  if (trains) {
    torch_.set_parameter(p.parameter, p.value);
  } else {
    torch_.set_frozen_parameter(p.parameter, p.value);
  }
}

void WholeModel::widen() {
  for (Trained& p : parameters_) {
    if (held(p).trainable || is_quantized(p) || p.value.dtype == held(p).dtype) continue;
    p.value = torch_.computed("aten::_to_copy", {reads(p.value)},
                              torch_.heap().make(p.elements, held(p).dtype, Category::parameters, p.name));
    torch_.set_frozen_parameter(p.parameter, p.value);
  }
}

void WholeModel::update_in_backward(const std::function<void(Trained&)>& update) {
  torch_.on_gradient([this, update](int parameter) {
    update(*std::ranges::find(parameters_, parameter, &Trained::parameter));
    torch_.take_gradient(parameter);
  });
}

void WholeModel::zero_gradients() {
  for (const Trained& p : parameters_) torch_.take_gradient(p.parameter);
}

std::vector<Trained*> WholeModel::trained() {
  std::vector<Trained*> list;
  for (Trained& p : parameters_) {
    if (held(p).trainable) list.push_back(&p);
  }
  return list;
}

std::vector<OptimizerGroup> WholeModel::groups() {
  if (!has_groups_of_trainer_) return Wrapper::groups();
  ByDecay split = split_by_decay(trained(), graph_);
  return {group(std::move(split.decaying)), group(std::move(split.others))};
}

OptimizerGroup WholeModel::group(std::vector<Trained*> parameters) const {
  std::vector<Tensor> gradients;
  for (const Trained* p : parameters) gradients.push_back(torch_.gradient(p->parameter));
  return {std::move(parameters), std::move(gradients)};
}

}  // namespace vramfit::eager
