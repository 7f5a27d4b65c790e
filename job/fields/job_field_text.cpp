#include "job/fields/job_field_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/job_field_names.h"
#include "job/loss/default_loss.h"
#include "job/optimizers/optimizers.h"
#include "job/sharding/mesh.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"

namespace vramfit {

namespace {

/// Optimizers of other libraries by how their names begin, each with the way to an answer.
struct OtherOptimizer {
  std::string_view prefix, answer;
};
constexpr std::array kOtherOptimizers{
    OtherOptimizer{"paged",
                   "of paged optimizers paged_adamw_8bit and paged_adamw_32bit are modelled; \"vramfit rehearse\" runs "
                   "a script with any of them"},
    OtherOptimizer{"galore", "GaLore isn't modelled; \"vramfit rehearse\" runs a script with it"},
    OtherOptimizer{"apollo", "APOLLO isn't modelled; \"vramfit rehearse\" runs a script with it"},
    OtherOptimizer{"muon", "Muon isn't modelled; \"vramfit rehearse\" runs a script with it"},
    OtherOptimizer{"schedule",
                   "schedule-free optimizers aren't modelled; \"vramfit rehearse\" runs a script with them"},
};

void refuse_known_elsewhere(std::string_view optimizer) {
  std::string name(optimizer);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* const other =
      std::ranges::find_if(kOtherOptimizers, [&](const OtherOptimizer& row) { return name.starts_with(row.prefix); });
  if (other == kOtherOptimizers.end()) return;
  throw NotModelled(fmt::format("--optimizer {}: {}", printable(optimizer, kLongestText), other->answer));
}

constexpr double kLeastKeep = 1e-6;  // of a gradient mask; below it, the scaled gradients would be useless

constexpr auto kOpNames = std::to_array<std::string_view>({
#define OP(name) #name,
#include "model_specs/ops.def"
#undef OP
});

}  // namespace

std::string get_precision(const Job& job) { return job.precision.name; }
void set_precision(Job& job, std::string_view value) { job.precision = precision_on(job, value); }

std::string get_loss_scale(const Job& job) {
  if (const auto* fixed = std::get_if<FixedLossScale>(&job.loss_scale)) return fmt::format("{}", fixed->factor);
  if (const auto* dynamic = std::get_if<DynamicLossScale>(&job.loss_scale)) {
    return fmt::format("dynamic:{}:{}", dynamic->first, dynamic->growth_interval);
  }
  return std::holds_alternative<NoLossScale>(job.loss_scale) ? "none" : "auto";
}
void set_loss_scale(Job& job, std::string_view value) {
  constexpr double kLeast = 1e-30, kMost = 1e30;  // their inverses are fp32 numbers too
  if (value == "auto") {
    job.loss_scale = LossScaleByPrecision{};
  } else if (value == "none") {
    job.loss_scale = NoLossScale{};
  } else if (value.starts_with("dynamic")) {
    DynamicLossScale scale;
    std::string_view rest = value.substr(7);
    if (!rest.empty() && rest.front() != ':') unknown_value(value, {"auto", "none", "dynamic[:INIT[:INTERVAL]]"});
    if (!rest.empty()) {
      rest.remove_prefix(1);
      const std::size_t colon = rest.find(':');
      scale.first = real_number(rest.substr(0, colon), kLeast, kMost);
      if (colon != std::string_view::npos) {
        scale.growth_interval = whole_number(rest.substr(colon + 1), 1, 1'000'000'000);
      }
    }
    job.loss_scale = scale;
  } else {
    job.loss_scale = FixedLossScale{real_number(value, kLeast, kMost)};
  }
}

/// Of the largest cluster that can be named: 65536 nodes of 1024 cards.
constexpr std::int64_t kMostRanks = std::int64_t{1} << 26;

std::string get_mesh(const Job& job) {
  const bool is_resolved =
      std::ranges::all_of(kMeshAxes, [&](const MeshAxis& axis) { return job.mesh.*axis.ranks > 0; });
  return is_resolved ? mesh_text(job.mesh) : "";
}
void set_mesh(Job& job, std::string_view value) {
  Mesh mesh{.replicate = 0, .shard = 0};  // an axis that isn't named is resolved from the cards
  for (const std::string& part : split_list(value)) {
    const auto& [name, count] = key_and_value(part);
    const std::int64_t ranks = whole_number(count, 1, kMostRanks);
    if (std::ranges::find(kOtherAxes, name) != kOtherAxes.end()) {
      if (ranks == 1) continue;  // no ranks to talk to
      throw NotModelled(fmt::format(
          "--mesh {}={}; rehearse a script that uses it: vramfit rehearse --gpus CLUSTER -- CMD", name, ranks));
    }
    const auto* const axis = std::ranges::find(kMeshAxes, name, &MeshAxis::name);
    if (axis == kMeshAxes.end()) {
      std::vector<std::string> known = names_of(kMeshAxes);
      known.insert(known.end(), kOtherAxes.begin(), kOtherAxes.end());
      throw InputError(fmt::format("unknown axis \"{}\"{}", printable(name), did_you_mean(name, known)));
    }
    mesh.*axis->ranks = ranks;
  }
  job.mesh = mesh;
}

std::string get_sharding(const Job& job) { return job.sharding; }
void set_sharding(Job& job, std::string_view value) { job.sharding = sharding_named(value).name; }

std::string get_reshard(const Job& job) {
  if (const auto* groups = std::get_if<ReshardGroups>(&job.reshard)) return fmt::to_string(groups->ranks);
  return name_of_kind(kReshards, job.reshard);
}
void set_reshard(Job& job, std::string_view value) {
  const bool digits = !value.empty() && std::ranges::all_of(value, is_digit);
  job.reshard = digits ? ReshardGroups{whole_number(value, 2, kMostRanks)} : named(kReshards, value);
}

std::string get_wrap(const Job& job) {
  if (const auto* by_size = std::get_if<WrapBySize>(&job.wrap))
    return fmt::format("size:{}", by_size->least_parameters);
  if (const auto* groups = std::get_if<WrapGroups>(&job.wrap)) return fmt::format("layers:{}", groups->layers);
  if (const auto* by_pattern = std::get_if<WrapByPattern>(&job.wrap)) {
    return fmt::format("pattern:{}", fmt::join(by_pattern->globs, ","));
  }
  return std::holds_alternative<WrapNothing>(job.wrap) ? "none" : "layer";
}
void set_wrap(Job& job, std::string_view value) {
  if (value == "layer") {
    job.wrap = WrapLayers{};
  } else if (value == "none") {
    job.wrap = WrapNothing{};
  } else if (value.starts_with("layers:")) {
    job.wrap = WrapGroups{whole_number(value.substr(7), 2, 4096)};
  } else if (value.starts_with("size:")) {
    job.wrap = WrapBySize{whole_number(value.substr(5), 1, std::int64_t{1} << 48)};
  } else if (value.starts_with("pattern:") && value.size() > 8) {
    job.wrap = WrapByPattern{split_list(value.substr(8))};
  } else {
    unknown_value(value, {"layer", "layers:K", "none", "size:N", "pattern:GLOB,..."});
  }
}

std::string get_prefetch(const Job& job) {
  return fmt::format("backward={},forward={},limit={}", name_in(kPrefetches, job.backward_prefetch),
                     job.forward_prefetch, job.prefetch_limit);
}
void set_prefetch(Job& job, std::string_view value) {
  for (const std::string& part : split_list(value)) {
    const auto [key, setting] = key_and_value(part);
    if (key == "backward") {
      job.backward_prefetch = named(kPrefetches, setting);
    } else if (key == "forward") {
      job.forward_prefetch = whole_number(setting, 0, 1024);
    } else if (key == "limit") {
      job.prefetch_limit = whole_number(setting, 0, 1024);
    } else {
      throw InputError(
          fmt::format("unknown key \"{}\"{}", printable(key), did_you_mean(key, {"backward", "forward", "limit"})));
    }
  }
}

namespace {

std::string text_of(const KeptOps& ops) {
  return ops.every == 1 ? ops.kind : fmt::format("{}/{}", ops.kind, ops.every);
}

KeptOps kept_ops(const std::string& text) {
  const std::size_t slash = text.find('/');
  KeptOps ops{.kind = text.substr(0, slash)};
  if (std::ranges::find(kOpNames, ops.kind) == kOpNames.end()) {
    unknown_value(ops.kind, {kOpNames.begin(), kOpNames.end()});
  }
  if (slash != std::string::npos) ops.every = whole_number(std::string_view(text).substr(slash + 1), 1, 4096);
  return ops;
}

Checkpointing selective(std::string_view text) {
  SelectiveCheckpointing chosen;
  for (const std::string& part : split_list(text)) chosen.kept.push_back(kept_ops(part));
  return chosen;
}

/// Those that are a name alone.
std::span<const Named<Checkpointing>> checkpointings() {
  static const std::array table{Named{"none", Checkpointing{NoCheckpointing{}}},
                                Named{"full", Checkpointing{FullCheckpointing{}}},
                                Named{"selective", Checkpointing{SelectiveCheckpointing{}}}};
  return table;
}

}  // namespace

std::string get_checkpointing(const Job& job) {
  if (const auto* every = std::get_if<EveryNth>(&job.checkpointing)) return fmt::format("every:{}", every->n);
  if (const auto* budget = std::get_if<BudgetCheckpointing>(&job.checkpointing)) {
    return fmt::format("budget:{}%", budget->percent);
  }
  if (const auto* chosen = std::get_if<SelectiveCheckpointing>(&job.checkpointing); chosen && !chosen->kept.empty()) {
    std::vector<std::string> parts;
    for (const KeptOps& ops : chosen->kept) parts.push_back(text_of(ops));
    return fmt::format("selective:{}", fmt::join(parts, ","));
  }
  return name_of_kind(checkpointings(), job.checkpointing);
}
void set_checkpointing(Job& job, std::string_view value) {
  if (value.starts_with("every:")) {
    job.checkpointing = EveryNth{whole_number(value.substr(6), 1, kMostEvery)};
  } else if (value.starts_with("selective:")) {
    job.checkpointing = selective(value.substr(10));
  } else if (value.starts_with("budget:")) {
    std::string_view percent = value.substr(7);
    if (percent.ends_with('%')) percent.remove_suffix(1);
    job.checkpointing = BudgetCheckpointing{whole_number(percent, 0, 100)};
  } else if (std::ranges::none_of(checkpointings(), [&](const auto& row) { return row.name == value; })) {
    unknown_value(value, {"none", "full", "every:N", "selective", "selective:KIND,...", "budget:N%"});
  } else {
    job.checkpointing = named(checkpointings(), value);
  }
}

std::string get_offload(const Job& job) {
  return job.offload.empty() ? "none" : fmt::format("{}", fmt::join(job.offload, ","));
}
void set_offload(Job& job, std::string_view value) {
  job.offload.clear();
  if (value == "none" || value.empty()) return;
  for (const std::string& part : split_list(value)) {
    constexpr std::string_view kEvery = "activations:every:";
    if (part.starts_with(kEvery)) {
      whole_number(std::string_view(part).substr(kEvery.size()), 2, kMostEvery);
    } else if (std::ranges::find(kOffloads, part) == kOffloads.end()) {
      unknown_value(part, {"none", "params", "params:pageable", "optimizer", "optimizer:pageable",
                           "optimizer+gradients", "activations", "activations:every:N"});
    }
    if (std::ranges::find(job.offload, part) == job.offload.end()) job.offload.push_back(part);
  }
}

std::string get_optimizer(const Job& job) {
  return fmt::format("{}:{}", job.optimizer, name_in(kImplementations, job.optimizer_implementation));
}
void set_method(Job& job, std::string_view value) {
  if (value == "dpo" || value == "grpo") {
    throw NotModelled(
        fmt::format("--method {0}: it says which weights are trained; TRL's trainer of it is --stack trl-{0}", value));
  }
  if (value == "dora") throw InputError("dora is LoRA with --dora on: --method lora --dora on");
  job.method = named(kMethods, value);
}

void set_optimizer(Job& job, std::string_view value) {
  const std::size_t colon = value.find(':');
  const std::string_view kind = value.substr(0, colon);
  const auto rows = optimizer_names();
  const auto row = std::ranges::find(rows, kind, &OptimizerName::name);
  if (row == rows.end()) refuse_known_elsewhere(kind);
  if (row == rows.end()) unknown_value(kind, names_of(rows));
  const std::vector<std::string> known = split_list(row->values, '|');
  const std::string chosen(colon == std::string_view::npos ? known.front() : value);
  if (std::ranges::find(known, chosen) == known.end()) unknown_value(value, known);
  job.optimizer = kind;
  job.optimizer_implementation = named(kImplementations, std::string_view(chosen).substr(kind.size() + 1));
}

std::string get_loss(const Job& job) {
  if (const auto* chunked = std::get_if<ChunkedLoss>(&job.loss)) {
    return fmt::format("{}:{}", chunked->in_forward ? "chunked-forward" : "chunked", chunked->chunks);
  }
  return std::holds_alternative<UnsetLoss>(job.loss) ? "" : "full";
}
void set_loss(Job& job, std::string_view value) {
  if (value == "full") {
    job.loss = FullLoss{};
  } else if (value.starts_with("chunked:")) {
    job.loss = ChunkedLoss{whole_number(value.substr(8), 1, kMostLossChunks)};
  } else if (value.starts_with("chunked-forward:")) {
    job.loss = ChunkedLoss{.chunks = whole_number(value.substr(16), 1, kMostLossChunks), .in_forward = true};
  } else {
    unknown_value(value, {"full", "chunked:N", "chunked-forward:N"});
  }
}

// "" at their defaults, so that plan files and fingerprints from before there were any are what they were.

std::string get_label_smoothing(const Job& job) {
  return job.loss_terms.label_smoothing == 0 ? "" : fmt::to_string(job.loss_terms.label_smoothing);
}
void set_label_smoothing(Job& job, std::string_view value) {
  job.loss_terms.label_smoothing = real_number(value, 0, 1);
}

std::string get_z_loss(const Job& job) {
  return job.loss_terms.z_loss == 0 ? "" : fmt::to_string(job.loss_terms.z_loss);
}
void set_z_loss(Job& job, std::string_view value) { job.loss_terms.z_loss = real_number(value, 0, 1000); }

std::string get_ignore_index(const Job& job) {
  return job.loss_terms.ignored_label == kUnlabelled ? "" : fmt::to_string(job.loss_terms.ignored_label);
}
/// resolve_job() knows the vocabulary.
void set_ignore_index(Job& job, std::string_view value) {
  job.loss_terms.ignored_label =
      value == fmt::to_string(kUnlabelled) ? kUnlabelled : whole_number(value, 0, std::int64_t{1} << 31);
}

std::string get_allocator(const Job& job) { return job.allocator; }
void set_allocator(Job& job, std::string_view value) {
  if (value.find_first_of("=:") != std::string_view::npos) {
    parse_allocator_settings(value);
  } else if (value != "native" && !names_expandable_segments(value) && !is_arena(value)) {
    unknown_value(value, {"native", "expandable", "gradients-first", "arena", "KEY=VALUE,..."});
  }
  job.allocator = printable(value, kLongestText);
}

std::string get_freeze(const Job& job) { return fmt::format("{}", fmt::join(job.freeze, ",")); }
void set_freeze(Job& job, std::string_view value) {
  job.freeze.clear();
  if (!value.empty()) job.freeze = split_list(value);
}

std::string get_lora_rank(const Job& job) { return job.lora.rank == 0 ? "" : fmt::to_string(job.lora.rank); }
void set_lora_rank(Job& job, std::string_view value) { job.lora.rank = whole_number(value, 1, kMostCount); }

std::string get_lora_alpha(const Job& job) { return job.lora.alpha == 0 ? "" : fmt::to_string(job.lora.alpha); }
void set_lora_alpha(Job& job, std::string_view value) { job.lora.alpha = real_number(value, kLeastAlpha, kMostAlpha); }

std::string get_lora_dropout(const Job& job) { return job.lora.dropout == 0 ? "" : fmt::to_string(job.lora.dropout); }
void set_lora_dropout(Job& job, std::string_view value) { job.lora.dropout = real_number(value, 0, kMostDropout); }

std::string get_lora_targets(const Job& job) { return fmt::format("{}", fmt::join(job.lora.targets, ",")); }
void set_lora_targets(Job& job, std::string_view value) {
  job.lora.targets.clear();
  if (!value.empty() && value != "all-linear" && value != "none") job.lora.targets = split_list(value);
}

std::string get_rslora(const Job& job) { return job.lora.rank_stabilized ? "on" : ""; }
void set_rslora(Job& job, std::string_view value) {
  if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
  job.lora.rank_stabilized = value == "on";
}

std::string get_dora(const Job& job) { return job.lora.has_magnitudes ? "on" : ""; }
void set_dora(Job& job, std::string_view value) {
  if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
  job.lora.has_magnitudes = value == "on";
}

std::string get_gradient_mask(const Job& job) {
  if (const auto* random = std::get_if<RandomGradientMask>(&job.gradient_mask)) {
    return fmt::format("keep:{}", random->keep);
  }
  const auto* file = std::get_if<GradientMaskFile>(&job.gradient_mask);
  return file != nullptr ? "file:" + file->path : "none";
}
void set_gradient_mask(Job& job, std::string_view value) {
  if (value == "none") {
    job.gradient_mask = NoGradientMask{};
  } else if (value.starts_with("keep:")) {
    const std::string_view text = value.substr(5);
    RandomGradientMask mask;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mask.keep);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    // Written as a negated comparison so that NaN fails it.
    if (!is_number || !(mask.keep >= kLeastKeep && mask.keep <= 1)) {
      throw InputError(fmt::format("\"{}\" is no probability from {} to 1", printable(text), kLeastKeep));
    }
    job.gradient_mask = mask;
  } else if (value.starts_with("file:") && value.size() > 5) {
    const GradientMaskFile file{std::string(value.substr(5))};
    if (printable(file.path, kLongestText) != file.path) {
      throw InputError("the path holds control characters or broken UTF-8");
    }
    job.gradient_mask = file;
  } else {
    unknown_value(value, {"none", "keep:P", "file:PATH"});
  }
}

}  // namespace vramfit
