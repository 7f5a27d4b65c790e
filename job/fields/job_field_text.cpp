#include "job/fields/job_field_text.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/suggest.h"
#include "job/allocator/allocator_settings.h"
#include "job/default_loss.h"
#include "job/fields/job_field_names.h"
#include "job/mesh.h"
#include "job/optimizers.h"
#include "job/sharding.h"

namespace vramfit {

namespace {

constexpr double kLeastKeep = 1e-6;  // of a gradient mask; below it, the scaled gradients would be useless

}  // namespace

std::string get_precision(const Job& job) { return job.precision.name; }
void set_precision(Job& job, std::string_view value) { job.precision = precision_named(value); }

std::string get_loss_scale(const Job& job) {
  const LossScale& scale = job.loss_scale;
  switch (scale.kind) {
    case LossScale::Kind::by_precision:
      return "auto";
    case LossScale::Kind::none:
      return "none";
    case LossScale::Kind::fixed:
      return fmt::format("{}", scale.value);
    case LossScale::Kind::dynamic:
      return fmt::format("dynamic:{}:{}", scale.value, scale.growth_interval);
  }
  return "";
}
void set_loss_scale(Job& job, std::string_view value) {
  constexpr double kLeast = 1e-30, kMost = 1e30;  // their inverses are fp32 numbers too
  using Kind = LossScale::Kind;
  LossScale scale;
  if (value == "none") {
    scale.kind = Kind::none;
  } else if (value.starts_with("dynamic")) {
    scale.kind = Kind::dynamic;
    std::string_view rest = value.substr(7);
    if (!rest.empty() && rest.front() != ':') unknown_value(value, {"auto", "none", "dynamic[:INIT[:INTERVAL]]"});
    if (!rest.empty()) {
      rest.remove_prefix(1);
      const std::size_t colon = rest.find(':');
      scale.value = real_number(rest.substr(0, colon), kLeast, kMost);
      if (colon != std::string_view::npos) {
        scale.growth_interval = whole_number(rest.substr(colon + 1), 1, 1'000'000'000);
      }
    }
  } else if (value != "auto") {
    scale.kind = Kind::fixed;
    scale.value = real_number(value, kLeast, kMost);
  }
  job.loss_scale = scale;
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
  return job.reshard == Reshard::groups ? fmt::to_string(job.reshard_groups) : name_in(kReshards, job.reshard);
}
void set_reshard(Job& job, std::string_view value) {
  const bool digits = !value.empty() && std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
  job.reshard = digits ? Reshard::groups : named(kReshards, value);
  job.reshard_groups = digits ? whole_number(value, 2, kMostRanks) : 0;
}

std::string get_wrap(const Job& job) {
  switch (job.wrap) {
    case Wrap::layer:
      return "layer";
    case Wrap::none:
      return "none";
    case Wrap::size:
      return fmt::format("size:{}", job.wrap_min_parameters);
    case Wrap::pattern:
      return fmt::format("pattern:{}", fmt::join(job.wrap_patterns, ","));
  }
  return "";
}
void set_wrap(Job& job, std::string_view value) {
  job.wrap_min_parameters = 0;
  job.wrap_patterns.clear();
  if (value == "layer" || value == "none") {
    job.wrap = value == "layer" ? Wrap::layer : Wrap::none;
  } else if (value.starts_with("size:")) {
    job.wrap = Wrap::size;
    job.wrap_min_parameters = whole_number(value.substr(5), 1, std::int64_t{1} << 48);
  } else if (value.starts_with("pattern:") && value.size() > 8) {
    job.wrap = Wrap::pattern;
    job.wrap_patterns = split_list(value.substr(8));
  } else {
    unknown_value(value, {"layer", "none", "size:N", "pattern:GLOB,..."});
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

std::string get_checkpointing(const Job& job) {
  return job.checkpointing == Checkpointing::every ? fmt::format("every:{}", job.checkpoint_every)
                                                   : name_in(kCheckpointings, job.checkpointing);
}
void set_checkpointing(Job& job, std::string_view value) {
  const bool every = value.starts_with("every:");
  if (!every && std::ranges::none_of(kCheckpointings, [&](const auto& row) { return row.name == value; })) {
    unknown_value(value, {"none", "full", "every:N", "selective"});
  }
  job.checkpointing = every ? Checkpointing::every : named(kCheckpointings, value);
  job.checkpoint_every = every ? whole_number(value.substr(6), 1, 4096) : 1;
}

std::string get_offload(const Job& job) {
  return job.offload.empty() ? "none" : fmt::format("{}", fmt::join(job.offload, ","));
}
void set_offload(Job& job, std::string_view value) {
  job.offload.clear();
  if (value == "none" || value.empty()) return;
  for (const std::string& part : split_list(value)) {
    if (std::ranges::find(kOffloads, part) == kOffloads.end()) {
      unknown_value(part, {"none", "params", "optimizer", "optimizer+gradients", "activations"});
    }
    if (std::ranges::find(job.offload, part) == job.offload.end()) job.offload.push_back(part);
  }
}

std::string get_optimizer(const Job& job) {
  return fmt::format("{}:{}", job.optimizer, name_in(kImplementations, job.optimizer_implementation));
}
void set_optimizer(Job& job, std::string_view value) {
  const std::size_t colon = value.find(':');
  const std::string_view kind = value.substr(0, colon);
  const auto rows = optimizer_names();
  const auto row = std::ranges::find(rows, kind, &OptimizerName::name);
  if (row == rows.end()) unknown_value(kind, names_of(rows));
  const std::vector<std::string> known = split_list(row->values, '|');
  const std::string chosen(colon == std::string_view::npos ? known.front() : value);
  if (std::ranges::find(known, chosen) == known.end()) unknown_value(value, known);
  job.optimizer = kind;
  job.optimizer_implementation = named(kImplementations, std::string_view(chosen).substr(kind.size() + 1));
}

std::string get_loss(const Job& job) {
  if (is_unset_loss(job)) return "";
  return job.loss == LossKind::chunked ? fmt::format("chunked:{}", job.loss_chunks) : "full";
}
void set_loss(Job& job, std::string_view value) {
  if (value == "full") {
    job.loss = LossKind::full;
    job.loss_chunks = Job{}.loss_chunks;
  } else if (value.starts_with("chunked:")) {
    job.loss_chunks = whole_number(value.substr(8), 1, kMostLossChunks);
    job.loss = LossKind::chunked;
  } else {
    unknown_value(value, {"full", "chunked:N"});
  }
}

std::string get_allocator(const Job& job) { return job.allocator; }
void set_allocator(Job& job, std::string_view value) {
  if (value.find_first_of("=:") != std::string_view::npos) {
    parse_allocator_settings(value);
  } else if (value != "native" && value != "expandable" && !is_arena(value)) {
    unknown_value(value, {"native", "expandable", "arena", "KEY=VALUE,..."});
  }
  job.allocator = printable(value, kLongestText);
}

std::string get_freeze(const Job& job) { return fmt::format("{}", fmt::join(job.freeze, ",")); }
void set_freeze(Job& job, std::string_view value) {
  job.freeze.clear();
  if (!value.empty() && value != "none") job.freeze = split_list(value);
}

std::string get_gradient_mask(const Job& job) {
  if (job.gradient_mask == GradientMask::keep) return fmt::format("keep:{}", job.gradient_keep);
  return job.gradient_mask == GradientMask::file ? "file:" + job.gradient_mask_file : "none";
}
void set_gradient_mask(Job& job, std::string_view value) {
  job.gradient_keep = 1;
  job.gradient_mask_file.clear();
  if (value == "none") {
    job.gradient_mask = GradientMask::none;
  } else if (value.starts_with("keep:")) {
    const std::string_view text = value.substr(5);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), job.gradient_keep);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    // Written as a negated comparison so that NaN fails it.
    if (!is_number || !(job.gradient_keep >= kLeastKeep && job.gradient_keep <= 1)) {
      throw InputError(fmt::format("\"{}\" is no probability from {} to 1", printable(text), kLeastKeep));
    }
    job.gradient_mask = GradientMask::keep;
  } else if (value.starts_with("file:") && value.size() > 5) {
    job.gradient_mask_file = value.substr(5);
    if (printable(job.gradient_mask_file, kLongestText) != job.gradient_mask_file) {
      throw InputError("the path holds control characters or broken UTF-8");
    }
    job.gradient_mask = GradientMask::file;
  } else {
    unknown_value(value, {"none", "keep:P", "file:PATH"});
  }
}

}  // namespace vramfit
