// PyTorch alone: the model on one GPU in one dtype, its gradients and states beside it.
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/pytorch/record.h"
#include "program/pytorch/rules.h"
#include "program/runtimes/runtimes.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

using eager::Module;
using eager::Tensor;
using eager::Torch;
using eager::Trained;

bool is_embedding(const Graph& graph, int parameter) {
  return std::ranges::any_of(graph.segments.front().ops, [&](const Op& op) {
    return op.kind == OpKind::embedding && op.parameters.front().parameter == parameter;
  });
}

class Plain final : public eager::Wrapper {
 public:
  Plain(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
      : torch_(torch),
        graph_(graph),
        is_trainer_(job.modeling == Modeling::transformers),
        held_(held_parameters(graph, job)) {
    for (const Module& module : modules) {
      for (const int index : module.parameters) {
        const Parameter& parameter = graph.parameters[static_cast<std::size_t>(index)];
        parameters_.push_back({.parameter = index,
                               .name = parameter.name,
                               .elements = element_count(parameter),
                               .is_embedding = is_embedding(graph, index),
                               .value = {},
                               .exp_avg = {},
                               .exp_avg_sq = {},
                               .step = {}});
      }
    }
  }

  void load() override {
    const eager::Scope scope(torch_.heap(), "model");
    for (Trained& p : parameters_) {
      if (const Quantization* const format = held(p).quantization; format != nullptr) {
        for (Tensor& tensor : torch_.make_quantized(p.parameter, p.elements, *format, p.name)) {
          quantized_.push_back(std::move(tensor));
        }
        continue;
      }
      p.value = torch_.heap().make(p.elements, held(p).dtype, Category::parameters, p.name);
      torch_.heap().run("aten::normal_", {writes(p.value)});
      torch_.set_parameter(p.parameter, p.value, held(p).trainable);
    }
  }
  void zero_gradients() override {
    for (const Trained& p : parameters_) torch_.take_gradient(p.parameter);
  }
  std::vector<Trained*> trained() override {
    std::vector<Trained*> list;
    for (Trained& p : parameters_) {
      if (held(p).trainable) list.push_back(&p);
    }
    return list;
  }
  std::vector<Tensor> gradients() override { return group(trained()).gradients; }
  /// The Trainer's weights decay apart from its vectors, which don't (transformers/trainer_pt_utils.py).
  std::vector<eager::OptimizerGroup> groups() override {
    if (!is_trainer_) return Wrapper::groups();
    std::vector<Trained*> decaying, others;
    for (Trained* p : trained()) (is_vector(*p) ? others : decaying).push_back(p);
    return {group(std::move(decaying)), group(std::move(others))};
  }
  Tensor gradient_of(const Trained& p) override { return torch_.gradient(p.parameter); }

 private:
  const HeldParameter& held(const Trained& p) const { return held_[static_cast<std::size_t>(p.parameter)]; }
  bool is_vector(const Trained& p) const {
    return graph_.parameters[static_cast<std::size_t>(p.parameter)].shape.size() == 1;
  }
  eager::OptimizerGroup group(std::vector<Trained*> parameters) const {
    std::vector<Tensor> gradients;
    for (const Trained* p : parameters) gradients.push_back(torch_.gradient(p->parameter));
    return {std::move(parameters), std::move(gradients)};
  }

  Torch& torch_;
  const Graph& graph_;
  bool is_trainer_;
  std::vector<HeldParameter> held_;
  std::vector<Trained> parameters_;
  std::vector<Tensor> quantized_;
};

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  return std::make_unique<Plain>(torch, graph, job, modules);
}

void require_quantization(const Job& job) {
  if (job.quantization == "none") return;
  if (job.method == Method::qlora && job.precision.name == "bf16-mixed" && job.quantization.starts_with("nf4")) return;
  throw NotModelled(
      fmt::format("--method {} with --quantization {} and --precision {} (--method qlora with nf4 or nf4-double and "
                  "bf16-mixed is)",
                  job_field_named("method").get(job), job.quantization, job.precision.name));
}

/// Weights in bf16 under autocast: what a checkpoint in bf16 is with bf16=True since transformers 5.
void require_storage(const Job& job, Job& modelled) {
  if (job.method != Method::full || job.precision.storage != Dtype::bf16) return;
  if (job.precision.state != Dtype::bf16) {
    throw NotModelled(
        fmt::format("--storage-dtype bf16 with --state-dtype {} (PyTorch's optimizers keep states as the weights are: "
                    "--state-dtype bf16)",
                    dtype_name(job.precision.state)));
  }
  modelled.precision.storage = modelled.precision.state = Dtype::bf16;
}

void require(const Job& job, const Cluster& cluster) {
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch");
  const bool has_autocast = job.modeling == Modeling::transformers && job.precision.name == "bf16-mixed";
  job_field_named("precision")
      .set(modelled, has_autocast || job.precision.name == "fp32" ? job.precision.name : "bf16-pure");
  if (has_autocast) require_storage(job, modelled);
  job_field_named("loss").set(modelled, "full");
  if (cluster.cards() > 1) throw NotModelled("--runtime pytorch on several GPUs (--runtime pytorch-fsdp2 shards)");
  constexpr std::array<std::string_view, 8> kAdapters{"method",       "lora_rank", "lora_alpha",   "lora_dropout",
                                                      "lora_targets", "rslora",    "frozen_dtype", "quantization"};
  std::span<const std::string_view> honoured;
  if (job.modeling == Modeling::transformers && job.method != Method::full) honoured = kAdapters;
  eager::require_rules(job, modelled, cluster, honoured);
  require_quantization(job);
}

program::Program make(const program::LowerInputs& inputs) { return eager::record(inputs, wrap); }

}  // namespace

RuntimeRow pytorch_row() { return {.require_rules = require, .make_program = make}; }

}  // namespace vramfit
