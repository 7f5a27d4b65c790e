#include "estimator/changes/result_changes.h"

#include <algorithm>
#include <array>
#include <functional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_field_names.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "job/optimizers/optimizers.h"
#include "job/parameters/freeze.h"
#include "job/parameters/quantization.h"
#include "job/resolve_job.h"
#include "job/stacks/sharded_instead.h"
#include "job/stacks/stacks.h"
#include "program/stages/adapters.h"
#include "program/stages/own_kernels.h"
#include "program/stages/trainable.h"

namespace vramfit {
namespace {

constexpr std::int64_t kShortestSequence = 128;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 28;  // of tokens in a sequence, or sequences in a batch

using Values = std::vector<std::string>;

/// The job with each of the values in a field, where that changes what the field sets.
template <typename T>
std::vector<Job> with_each(const Job& job, std::string_view field, T Job::*set, const Values& names) {
  std::vector<Job> changed;
  for (const std::string& name : names) {
    Job choice = job;
    job_field_named(field).set(choice, name);
    if (choice.*set != job.*set) changed.push_back(std::move(choice));
  }
  return changed;
}

// What the executor trains in; dtypes that were set stay set beside the new flag. fp8 rounds far more than the others,
// so it is tried only by name.
std::vector<Job> precisions(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  std::vector<Job> changed;
  for (const std::string_view name : {"bf16-mixed", "bf16-pure", "fp16-mixed", "fp32", "fp8"}) {
    const bool wanted = values.empty() ? name == "bf16-pure" : std::ranges::find(values, name) != values.end();
    if (!wanted || job.precision.name == name) continue;
    changed.push_back(job);
    changed.back().precision = with_set_dtypes(precision_on(job, name), job);
  }
  return changed;
}

// Those of the engine that keep less for each weight; by default the one that trains most alike.
std::vector<Job> optimizers(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  Values names = values;
  if (values.empty() && job.optimizer == "adamw") names.emplace_back("adamw-8bit");
  // The Trainer has 4 bits from torchao alone.
  const bool is_trainer = job.runtime != Runtime::vramfit && job.modeling == Modeling::transformers;
  if (is_trainer) std::ranges::replace(names, std::string("adamw-4bit"), std::string("adamw-4bit:torchao"));
  std::vector<Job> changed;
  const JobField& field = job_field_named("optimizer");
  for (const std::string& name : names) {
    Job choice = job;
    field.set(choice, name);
    if (field.get(choice) != field.get(job)) changed.push_back(std::move(choice));
  }
  return changed;
}

bool is_for_trained(const std::string& name) {
  const Quantization* format = quantization_named(name);
  return format != nullptr && format->trains;
}

// By default of frozen weights alone, in 8 bits, and in the 4 that need least; those that have so few stay as they are.
// What rounds trained ones is tried by name.
std::vector<Job> quantizations(const Job& job, const ModelSpec& spec, const Values& values) {
  Values names = values;
  if (values.empty()) names = job.quantization == "none" ? Values{"int8", "nf4-double"} : Values{"nf4-double"};
  std::erase(names, job.quantization);
  std::vector<Job> changed;
  if (names.empty()) return changed;
  if (!has_frozen_matrices(job, spec)) std::erase_if(names, std::not_fn(is_for_trained));
  for (const std::string& name : names) {
    changed.push_back(job);
    changed.back().quantization = name;
  }
  return changed;
}

// Own CUDA kernels round less often than LibTorch's functions. By default where they replace dozens of passes.
std::vector<Job> kernels(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  Values names = values;
  if (values.empty() && job.runtime == Runtime::vramfit && replaces_many_calls(job)) names = {"vramfit"};
  return with_each(job, "kernels", &Job::kernels, names);
}

std::string why_no_kernels(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  if (!values.empty() || job.runtime != Runtime::vramfit) return "";
  return "by default they are tried only where each replaces dozens of calls: for optimizer states of few bits, states "
         "or gradients of another dtype than the parameters, stochastic rounding, Adafactor, fp16 masters, dropout and "
         "quantized weights, none of which this job has; --allow kernels:vramfit tries them for everything that they "
         "do on GPUs";
}

/// Adapters leave all else frozen, unless `--freeze none` trains it, too.
bool has_frozen_weights(const Job& job) { return has_adapters(job) ? !freezes_nothing(job) : !job.freeze.empty(); }

/// "bf16", whether a flag says so or parameters have it; "fp8".
std::string gradient_dtype_of(const Job& job) {
  return keeps_fp8_gradients(job) ? get_gradient_dtype(job) : std::string(dtype_name(kept_gradient_dtype(job)));
}

/// Of a job that has some. DeepSpeed converts weights to what it computes in, so that what they were loaded in is
/// something for QLoRA alone.
Dtype frozen_dtype_in(const Job& job) {
  if (job.runtime == Runtime::deepspeed && job.method != Method::qlora) return job.precision.compute;
  return job.frozen_dtype.value_or(has_adapters(job) ? job.precision.compute : job.precision.storage);
}

// Of fp32 weights that are multiplied in 16 bits, these 16 bits.
std::vector<Job> frozen_dtypes(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  if (!has_frozen_weights(job)) return {};
  const Dtype present = frozen_dtype_in(job), computed = job.precision.compute;
  Values names = values;
  const bool is_wide = present == Dtype::f32 && computed != Dtype::f32;
  if (values.empty() && is_wide) names.emplace_back(dtype_name(computed));
  std::vector<Job> changed = with_each(job, "frozen_dtype", &Job::frozen_dtype, names);
  std::erase_if(changed, [&](const Job& choice) { return frozen_dtype_in(choice) == present; });
  return changed;
}

std::string why_no_frozen_dtype(const Job& job, const ModelSpec& /*spec*/, const Values& /*values*/) {
  if (!has_frozen_weights(job)) return "all weights are trained; use --method lora or --freeze";
  return fmt::format("frozen weights are in {} already", dtype_name(frozen_dtype_in(job)));
}

// Another dtype than parameters have, by name alone: it halves no more than gradients, of which many ranks have few.
std::vector<Job> gradient_dtypes(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  std::vector<Job> changed;
  for (const std::string& value : values) {
    Job choice = job;
    set_gradient_dtype(choice, value);
    if (gradient_dtype_of(choice) != gradient_dtype_of(job)) changed.push_back(std::move(choice));
  }
  return changed;
}

std::string why_no_gradient_dtype(const Job& /*job*/, const ModelSpec& /*spec*/, const Values& values) {
  return values.empty() ? "it needs a value, such as --allow gradient-dtype:bf16" : "";
}

std::vector<std::int64_t> numbers_of(const Values& values) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(values.size());
  for (const std::string& value : values) numbers.push_back(whole_number(value, 1, kMostNumber));
  std::ranges::sort(numbers, std::greater<>());
  return numbers;
}

std::string why_no_quantization(const Job& job, const ModelSpec& spec, const Values& values) {
  const bool is_set = std::ranges::find(values, job.quantization) != values.end();
  if (has_frozen_matrices(job, spec) || is_set) return "";
  if (std::ranges::any_of(values, is_for_trained)) {
    if (job.runtime != Runtime::vramfit) return "";
    return "trained matrices can be in FP8 on the card only if host memory has their masters: give --offload "
           "optimizer, which a plan for GPUs tries by itself if --host-memory is given and --offload is not";
  }
  const std::string why = "all matrices of layers are trained, and only frozen ones can be quantized; use ";
  return why + (job.runtime != Runtime::vramfit ? "--allow method:qlora"
                                                : "--allow method:qlora, --method lora or --freeze; or, if host memory "
                                                  "has room for the masters, --allow quantization:fp8");
}

// Smaller ones, down to one sequence for each data rank; larger ones by name. Micro-batch and accumulation follow.
std::vector<Job> global_batches(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  std::vector<std::int64_t> sizes = numbers_of(values);
  const std::int64_t ranks = data_ranks(job);
  if (values.empty()) {
    for (std::int64_t rows = job.global_batch / ranks / 2; rows > 0; rows /= 2) sizes.push_back(rows * ranks);
  }
  std::vector<Job> changed;
  for (const std::int64_t size : sizes) {
    if (size == job.global_batch) continue;
    changed.push_back(job);
    changed.back().global_batch = size;
    changed.back().micro_batch = changed.back().accumulation = 0;
  }
  return changed;
}

std::string why_no_global_batch(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  const std::int64_t ranks = data_ranks(job);
  if (!values.empty() || job.global_batch / ranks > 1) return "";
  return fmt::format(
      "{} is one sequence for each of {} data ranks, and none is smaller; name others, such as "
      "--allow global-batch:{}",
      job.global_batch, ranks, 4 * ranks);
}

Values kernels_by_name(const Job& /*job*/) { return {"vramfit"}; }
Values precisions_by_name(const Job& /*job*/) { return {"bf16-mixed", "fp16-mixed", "fp32"}; }
Values optimizers_by_name(const Job& /*job*/) { return {"adamw-8bit", "adamw"}; }
Values quantizations_by_name(const Job& /*job*/) { return names_of(kQuantizations); }
Values methods_by_name(const Job& /*job*/) { return {"lora", "qlora", "full"}; }
Values global_batches_by_name(const Job& job) { return {fmt::to_string(checked_mul(job.global_batch, 2))}; }

/// What was decided for adapters and the weights below them goes with them.
void leave_adapters(Job& job) {
  const Job none = unresolved_job();
  job.lora = none.lora;
  job.frozen_dtype = none.frozen_dtype;
  job.quantization = none.quantization;
}

// Adapters on frozen weights; by default in the weights' own dtype, and in 4 bits where that is still too large, also
// where adapters were asked for. The engine has 4 bits as a quantization of these. torchtitan has none.
std::vector<Job> methods(const Job& job, const ModelSpec& spec, const Values& values) {
  Values names = values;
  if (values.empty() && job.method == Method::full && !is_torchtitan(job)) names = {"lora", "qlora"};
  if (values.empty() && job.method == Method::lora && job.runtime != Runtime::vramfit) names = {"qlora"};
  std::vector<Job> changed = with_each(job, "method", &Job::method, names);
  std::vector<std::string> notes;  // defaults show as flags of the plan
  const std::string& name = job.precision.name;
  const Precision usual = name.empty() ? job.precision : precision_on(job, name);
  const bool is_usual = !name.empty() && job.precision.storage == usual.storage && job.precision.state == usual.state;
  for (Job& choice : changed) {
    if (choice.method == Method::full) leave_adapters(choice);
    resolve_adapters(choice, notes);
    if (!is_usual) continue;  // dtypes that were set stay
    const Precision of_choice = precision_on(choice, name);
    choice.precision.storage = of_choice.storage;
    choice.precision.state = of_choice.state;
  }
  // --freeze says which part of the base is frozen: without a matrix of a layer there is nothing to store in few bits.
  std::erase_if(changed, [&](const Job& choice) {
    return choice.method == Method::qlora && !choice.freeze.empty() && !has_frozen_matrices(choice, spec);
  });
  return changed;
}

std::vector<Job> sequences(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  std::vector<std::int64_t> lengths = numbers_of(values);
  for (std::int64_t length = job.sequence / 2; values.empty() && length >= kShortestSequence; length /= 2) {
    lengths.push_back(length);
  }
  std::vector<Job> changed;
  for (const std::int64_t length : lengths) {
    if (length >= job.sequence) continue;
    changed.push_back(job);
    changed.back().sequence = length;
  }
  return changed;
}

std::string why_no_sequence(const Job& job, const ModelSpec& /*spec*/, const Values& values) {
  if (!values.empty()) return fmt::format("it is not shorter than --seq-len {}", job.sequence);
  return fmt::format("half of --seq-len {} is less than {}, the shortest that is tried by itself; name a length",
                     job.sequence, kShortestSequence);
}

std::string precision_of(const Job& job) { return job.precision.name; }
/// The form that a job has by default goes without saying.
std::string optimizer_of(const Job& job) {
  const std::string value = job_field_named("optimizer").get(job);
  constexpr std::string_view kUsual = ":fused";
  return value.ends_with(kUsual) ? value.substr(0, value.size() - kUsual.size()) : value;
}
std::string kernels_of(const Job& job) {
  const std::string value = job_field_named("kernels").get(job);
  return value.empty() ? "libtorch" : value;
}
std::string frozen_dtype_of(const Job& job) {
  return has_frozen_weights(job) ? std::string(dtype_name(frozen_dtype_in(job))) : "";
}
std::string quantization_of(const Job& job) { return job.quantization; }
std::string global_batch_of(const Job& job) { return fmt::to_string(job.global_batch); }
std::string method_of(const Job& job) { return job_field_named("method").get(job); }
std::string sequence_of(const Job& job) { return fmt::to_string(job.sequence); }

void check_precision(const std::string& name) { precision_named(name); }
void check_quantization(const std::string& name) {
  if (quantization_named(name) == nullptr) unknown_value(name, names_of(kQuantizations));
}
void check_value(std::string_view field, const std::string& value) {
  Job job;
  job_field_named(field).set(job, value);
}
void check_optimizer(const std::string& name) { check_value("optimizer", name); }
void check_frozen_dtype(const std::string& name) { check_value("frozen_dtype", name); }
void check_gradient_dtype(const std::string& name) { check_value("gradient_dtype", name); }
void check_kernels(const std::string& name) { check_value("kernels", name); }
void check_method(const std::string& name) { check_value("method", name); }
void check_number(const std::string& value) { whole_number(value, 1, kMostNumber); }

constexpr std::array kResultChanges{
    ResultChange{.name = "kernels",
                 .field = "kernels",
                 .example = "kernels",
                 .choices = kernels,
                 .by_name = kernels_by_name,
                 .why_none = why_no_kernels,
                 .value = kernels_of,
                 .check = check_kernels},
    ResultChange{.name = "frozen-dtype",
                 .field = "frozen_dtype",
                 .example = "frozen-dtype",
                 .choices = frozen_dtypes,
                 .why_none = why_no_frozen_dtype,
                 .value = frozen_dtype_of,
                 .check = check_frozen_dtype},
    ResultChange{.name = "gradient-dtype",
                 .field = "gradient_dtype",
                 .example = "gradient-dtype:bf16",
                 .choices = gradient_dtypes,
                 .why_none = why_no_gradient_dtype,
                 .value = gradient_dtype_of,
                 .check = check_gradient_dtype},
    ResultChange{.name = "precision",
                 .field = "precision",
                 .example = "precision:bf16-pure",
                 .choices = precisions,
                 .by_name = precisions_by_name,
                 .value = precision_of,
                 .check = check_precision},
    ResultChange{.name = "optimizer",
                 .field = "optimizer",
                 .example = "optimizer",
                 .choices = optimizers,
                 .by_name = optimizers_by_name,
                 .value = optimizer_of,
                 .check = check_optimizer},
    ResultChange{.name = "global-batch",
                 .field = "global_batch",
                 .example = "global-batch:64",
                 .shrinks = true,
                 .choices = global_batches,
                 .by_name = global_batches_by_name,
                 .why_none = why_no_global_batch,
                 .value = global_batch_of,
                 .check = check_number},
    ResultChange{.name = "quantization",
                 .field = "quantization",
                 .example = "quantization",
                 .last_resort = true,
                 .shown_if_faster = true,
                 .choices = quantizations,
                 .by_name = quantizations_by_name,
                 .why_none = why_no_quantization,
                 .value = quantization_of,
                 .check = check_quantization},
    ResultChange{.name = "method",
                 .field = "method",
                 .example = "method:lora",
                 .last_resort = true,
                 .shown_if_faster = true,
                 .choices = methods,
                 .by_name = methods_by_name,
                 .value = method_of,
                 .check = check_method},
    ResultChange{.name = "seq-len",
                 .field = "seq_len",
                 .example = "seq-len",
                 .last_resort = true,
                 .shrinks = true,
                 .choices = sequences,
                 .why_none = why_no_sequence,
                 .value = sequence_of,
                 .check = check_number},
};

}  // namespace

std::span<const ResultChange> result_changes() { return kResultChanges; }

bool has_frozen_matrices(const Job& job, const ModelSpec& spec) {
  if (!has_adapters(job) && job.freeze.empty()) return false;
  Job quantized = job;
  quantized.quantization = "int8";  // any
  try {
    held_parameters(training_graph(spec, job), quantized);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace vramfit
