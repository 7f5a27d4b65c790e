#include "program/stages/trainable.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "job/parameters/freeze.h"
#include "job/parameters/glob.h"
#include "program/ops/op_row.h"
#include "program/stages/adapters.h"
#include "program/stages/offload.h"
#include "program/stages/score_head.h"

namespace vramfit {

namespace {

constexpr std::string_view kLayers = "layers:";
constexpr std::int64_t kMostLayers = std::int64_t{1} << 20;

struct LayerRange {
  std::int64_t first = 0, last = 0;
};

std::int64_t block_count(const Graph& graph) {
  return std::ranges::count(graph.segments, SegmentRole::block, &Segment::role);
}

/// "layers:4" or "layers:0-3", within a model of `blocks` layers.
LayerRange parse_layers(const std::string& pattern, std::int64_t blocks) {
  const std::string_view text = std::string_view(pattern).substr(kLayers.size());
  const std::size_t dash = text.find('-');
  const auto fail = [&](const std::string& what) {
    throw Conflict(fmt::format("--freeze {}: {}; the model has layers 0 to {}", printable(pattern), what, blocks - 1));
  };
  LayerRange range;
  try {
    range.first = whole_number(text.substr(0, dash), 0, kMostLayers);
    range.last = dash == std::string_view::npos ? range.first : whole_number(text.substr(dash + 1), 0, kMostLayers);
  } catch (const InputError& error) {
    fail(error.what());
  }
  if (range.last < range.first) fail("the range ends before it begins");
  if (range.last >= blocks) fail(fmt::format("there is no layer {}", range.last));
  return range;
}

void mark(const Segment& segment, std::vector<bool>& parameters) {
  for (const Op& op : segment.ops) {
    for (const ParameterUse& use : op.parameters) parameters[static_cast<std::size_t>(use.parameter)] = true;
  }
}

/// Parameters of the segments that a name such as "layers:0-3" or "embeddings" means; nothing when it is a glob.
std::optional<std::vector<bool>> parameters_of_part(const Graph& graph, const std::string& pattern) {
  const bool layers = pattern.starts_with(kLayers);
  if (!layers && pattern != "embeddings" && pattern != "head") return std::nullopt;
  const LayerRange range = layers ? parse_layers(pattern, block_count(graph)) : LayerRange{};
  std::vector<bool> parameters(graph.parameters.size(), false);
  std::int64_t block = 0;
  for (const Segment& segment : graph.segments) {
    if (segment.role == SegmentRole::block) {
      if (layers && block >= range.first && block <= range.last) mark(segment, parameters);
      ++block;
    } else if (!layers && (segment.role == SegmentRole::embedding) == (pattern == "embeddings")) {
      mark(segment, parameters);
    }
  }
  return parameters;
}

[[noreturn]] void fail_unmatched(const Graph& graph, const std::string& pattern) {
  std::vector<std::string> names{"embeddings", "head", "layers:0"};
  for (const Parameter& parameter : graph.parameters) names.push_back(parameter.name);
  const std::string suggestion = did_you_mean(pattern, names);
  throw InputError(
      fmt::format("--freeze {}: no parameter of the model has such a name{} (a pattern matches whole names, "
                  "with * and ?, such as {}; parts are layers:FIRST-LAST, embeddings and head)",
                  printable(pattern), suggestion, graph.parameters.front().name));
}

/// Norms of a matrix and its adapter are constants of backward, through which the matrix has no gradient; nor has its
/// bias, beside which a magnitude scales.
void require_frozen_direction(const Graph& graph, const Op& op, const std::vector<bool>& trainable) {
  if (adapter_uses(op) == 0) return;
  for (std::size_t p = adapter_uses(op); p < op.parameters.size(); ++p) {
    const auto parameter = static_cast<std::size_t>(op.parameters[p].parameter);
    if (!trainable[parameter]) continue;
    throw Conflict(
        fmt::format("--dora on: --freeze leaves {} to train, beside its adapter; freeze it, name other --lora-targets, "
                    "or leave out "
                    "--dora",
                    graph.parameters[parameter].name));
  }
}

std::vector<bool> matched_parameters(const Graph& graph, const std::string& pattern) {
  if (std::optional<std::vector<bool>> part = parameters_of_part(graph, pattern)) return *std::move(part);
  std::vector<bool> parameters;
  for (const Parameter& parameter : graph.parameters) parameters.push_back(matches_glob(pattern, parameter.name));
  if (std::ranges::none_of(parameters, [](bool matches) { return matches; })) fail_unmatched(graph, pattern);
  return parameters;
}

}  // namespace

std::vector<bool> trainable_parameters(const Graph& graph, const Job& job) {
  // Of a model with adapters, all else is frozen unless --freeze says which part of it.
  std::vector<bool> trainable(graph.parameters.size(), !has_adapters(job) || !job.freeze.empty());
  for (const std::string& pattern : freezes_nothing(job) ? std::vector<std::string>{} : job.freeze) {
    const std::vector<bool> frozen = matched_parameters(graph, pattern);
    for (std::size_t i = 0; i < frozen.size(); ++i) trainable[i] = trainable[i] && !frozen[i];
  }
  if (has_adapters(job)) {
    const std::vector<bool> adapters = adapter_parameters(graph);
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      trainable[i] = trainable[i] || adapters[i] || is_trained_copy(graph.parameters[i].name);
    }
  }
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) require_frozen_direction(graph, op, trainable);
  }
  if (std::ranges::none_of(trainable, [](bool b) { return b; })) {
    throw Conflict("--freeze leaves no parameter to train (freeze less, as layers:FIRST-LAST, or leave it out)");
  }
  return trainable;
}

namespace {

/// A trained matrix is codes on the card alone: an update needs the numbers that the codes round.
void require_masters(const Job& job) {
  if (offload_of(job).states) return;
  throw Excluded(
      fmt::format("--quantization {} of matrices that are trained with --offload {} (host memory has to hold their "
                  "masters, and the card what it computes with: use --offload optimizer, optimizer+gradients or "
                  "params, or --quantization int8 of frozen ones)",
                  job.quantization, job.offload.empty() ? "none" : fmt::to_string(fmt::join(job.offload, ","))));
}

/// Weights of products within layers: frozen ones, and trained ones where the format allows. Embeddings and head keep
/// their dtype, as with bitsandbytes in transformers.
void quantize(const Graph& graph, const Job& job, std::vector<HeldParameter>& held) {
  const Quantization* format = quantization_named(job.quantization);
  if (format == nullptr) return;
  bool any = false;
  for (const Segment& segment : graph.segments) {
    if (segment.role != SegmentRole::block) continue;
    for (const Op& op : segment.ops) {
      if (!op_row(op.kind).quantizes_weight) continue;
      HeldParameter& weight = held[static_cast<std::size_t>(op.parameters.front().parameter)];
      if (weight.trainable && !format->trains) continue;
      any = true;
      if (weight.trainable) {
        require_masters(job);
        weight.trained_as = format;
      } else {
        weight.dtype = Dtype::u8;
        weight.quantization = format;
      }
    }
  }
  if (any) return;
  throw Conflict(
      fmt::format("--quantization {}: no matrix of a layer is frozen; give --freeze or --method lora, or leave it out "
                  "(trained ones: --quantization fp8 with --offload optimizer)",
                  job.quantization));
}

/// MS-AMP replaces all linears of a model; here, embeddings and head are no part of it, as with FP8 products.
template <typename Change>
void change_trained_matrices(const Graph& graph, std::vector<HeldParameter>& held, std::string_view flag,
                             const Change& change) {
  bool any = false;
  for (const Segment& segment : graph.segments) {
    if (segment.role != SegmentRole::block) continue;
    for (const Op& op : segment.ops) {
      if (!op_row(op.kind).quantizes_weight) continue;
      HeldParameter& weight = held[static_cast<std::size_t>(op.parameters.front().parameter)];
      if (!weight.trainable) continue;
      change(weight);
      any = true;
    }
  }
  if (!any) throw Conflict(fmt::format("{}: no matrix of a layer is trained; leave it out", flag));
}

void keep_matrices_in_few_bits(const Graph& graph, const Job& job, std::vector<HeldParameter>& held) {
  if (job.master_dtype) {
    change_trained_matrices(graph, held, "--master-dtype fp16", [&](HeldParameter& weight) {
      weight.dtype = *job.master_dtype;
      weight.is_scaled = true;
    });
  }
  if (keeps_fp8_gradients(job)) {
    const std::string flag = "--gradient-dtype " + job_field_named("gradient_dtype").get(job);
    change_trained_matrices(graph, held, flag, [](HeldParameter& weight) { weight.has_fp8_gradient = true; });
  }
}

}  // namespace

void require_adapters_alone(const Graph& graph, const Job& job) {
  if (!has_adapters(job)) {
    throw InputError("--save-adapters with --method full: there are no adapters; use --save-full, or --method lora");
  }
  const std::vector<bool> trained = trainable_parameters(graph, job), adapters = adapter_parameters(graph);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (!trained[i] || adapters[i]) continue;
    throw InputError(
        fmt::format("--save-adapters: --freeze leaves {} and others to train, and adapters alone would lack "
                    "them; use --save-full",
                    graph.parameters[i].name));
  }
}

std::vector<HeldParameter> held_parameters(const Graph& graph, const Job& job) {
  const std::vector<bool> trainable = trainable_parameters(graph, job);
  if (job.frozen_dtype && std::ranges::all_of(trainable, [](bool b) { return b; })) {
    throw Conflict(fmt::format("--frozen-dtype {}: nothing is frozen; give --freeze, or leave it out",
                               dtype_name(*job.frozen_dtype)));
  }
  // DeepSpeed converts what it is given, whatever that was loaded in.
  const std::optional<Dtype> loaded = job.runtime == Runtime::deepspeed ? std::nullopt : job.frozen_dtype;
  const Dtype frozen = loaded.value_or(has_adapters(job) ? job.precision.compute : job.precision.storage);
  std::vector<HeldParameter> held;
  for (const bool is_trainable : trainable) {
    held.push_back({is_trainable, is_trainable ? job.precision.storage : frozen});
  }
  quantize(graph, job, held);
  keep_matrices_in_few_bits(graph, job, held);
  return held;
}

std::vector<bool> segments_with_backward(const Graph& graph, const Job& job) {
  return segments_with_backward(graph, trainable_parameters(graph, job));
}

std::vector<bool> segments_with_backward(const Graph& graph, const std::vector<bool>& trainable) {
  std::vector<bool> has_backward;
  bool any = false;
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) any = any || trainable[static_cast<std::size_t>(use.parameter)];
    }
    has_backward.push_back(any);
  }
  return has_backward;
}

}  // namespace vramfit
