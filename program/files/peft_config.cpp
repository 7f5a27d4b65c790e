#include "program/files/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "job/fields/job_field_text.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

using JsonKind = JsonValue::Kind;

constexpr std::int64_t kMostRank = std::int64_t{1} << 30;
constexpr std::size_t kLongestTarget = 1000;

/// Keys that say nothing about what adapters compute once they are trained.
constexpr std::array kIgnored{
    "auto_mapping",   "base_model_name_or_path", "inference_mode", "revision",       "peft_version",
    "task_type",      "megatron_config",         "megatron_core",  "runtime_config", "qalora_group_size",
    "eva_config",     "ensure_weight_tying",     "lora_ga_config", "corda_config",   "loftq_config",
    "layers_pattern", "init_lora_weights"};

/// Keys that must be absent, null, false or empty, and what answers where they aren't.
struct Refused {
  std::string_view key, why;
};
constexpr const char* kMergeWithPeft = "merge them with PEFT's merge_and_unload() and train on the result";
constexpr std::array kRefused{
    Refused{"modules_to_save",
            "modules that are trained whole are no adapters; merge with PEFT's merge_and_unload(), "
            "which puts them into the model"},
    Refused{"rank_pattern", "all adapters have one rank here; merge them with PEFT's merge_and_unload()"},
    Refused{"alpha_pattern", "all adapters have one alpha here; merge them with PEFT's merge_and_unload()"},
    Refused{"lora_bias", "adapters have no bias here; merge them with PEFT's merge_and_unload()"},
    Refused{"layer_replication", "layers are not replicated here; save the replicated model with PEFT first"},
    Refused{"trainable_token_indices", "rows of embeddings have no adapters here; merge them with PEFT first"},
    Refused{"target_parameters", "parameters outside linears have no adapters here; merge them with PEFT first"},
};

/// Ways to initialize that leave the base's weights as they are; the others subtract from them what they put into the
/// adapters, so that the adapters belong to a base that no checkpoint has.
constexpr std::array kPlainStarts{"gaussian", "eva", "orthogonal"};

/// null, false, "", [] and {}.
bool is_empty(const JsonValue& value) {
  return value.kind == JsonKind::null || (value.kind == JsonKind::boolean && !value.boolean) ||
         (value.kind == JsonKind::text && value.text.empty()) ||
         ((value.kind == JsonKind::array || value.kind == JsonKind::object) && value.items.empty());
}

const JsonValue* find(const JsonValue& document, std::string_view key) {
  const auto found = std::ranges::find(document.keys, key);
  return found == document.keys.end() ? nullptr
                                      : &document.items[static_cast<std::size_t>(found - document.keys.begin())];
}

bool has_text(const JsonValue& document, std::string_view key) {
  const JsonValue* value = find(document, key);
  return value != nullptr && value->kind == JsonKind::text;
}

void refuse_unsupported(const JsonValue& document, JsonObject& object) {
  for (const Refused& row : kRefused) {
    const JsonValue* value = find(document, row.key);
    if (value != nullptr && !is_empty(*value))
      object.fail(row.key, std::string("not supported: ") + std::string(row.why));
  }
  if (object.has("bias") && object.text("bias") != "none") {
    object.fail("bias", fmt::format("not supported: \"{}\" trains biases of the base together with the adapters; {}",
                                    printable(object.text("bias"), 40), kMergeWithPeft));
  }
  const JsonValue* start = find(document, "init_lora_weights");
  if (start != nullptr && start->kind == JsonKind::text &&
      std::ranges::find(kPlainStarts, start->text) == kPlainStarts.end()) {
    object.fail("init_lora_weights",
                fmt::format("not supported: \"{}\" changes the base's weights; convert the adapters with PEFT's "
                            "save_pretrained(path_initial_model_for_weight_conversion=...)",
                            printable(start->text, 40)));
  }
}

/// A key that a later PEFT may have added is harmless where it is off.
void refuse_unknown(const JsonValue& document, JsonObject& object, const std::set<std::string_view>& known) {
  for (std::size_t i = 0; i < document.keys.size(); ++i) {
    if (known.contains(document.keys[i]) || is_empty(document.items[i])) continue;
    object.fail(document.keys[i], std::string("not supported: what it changes is unknown here; ") + kMergeWithPeft);
  }
}

/// Whether the configuration says by more than ends of names which modules have adapters.
bool has_exceptions(const JsonValue& document) {
  return std::ranges::any_of(std::array{"exclude_modules", "layers_to_transform"}, [&](const char* key) {
    const JsonValue* value = find(document, key);
    return value != nullptr && !is_empty(*value);
  });
}

bool is_plain_target(const std::string& target) {
  return !target.empty() && target.size() <= kLongestTarget && target.find_first_of("*?,") == std::string::npos;
}

void read_targets(const JsonValue& document, JsonObject& object, PeftConfig& config) {
  if (has_text(document, "target_modules")) {
    config.all_linear = object.text("target_modules") == "all-linear" && !has_exceptions(document);
    return;
  }
  if (!object.has("target_modules")) return;
  std::vector<std::string> targets = object.texts("target_modules");
  const bool are_enough = !has_exceptions(document) && std::ranges::all_of(targets, is_plain_target);
  if (!are_enough) return;
  std::ranges::sort(targets);
  targets.erase(std::ranges::unique(targets).begin(), targets.end());
  config.targets = std::move(targets);
}

/// PEFT's own type of lora_alpha is a whole number, but it takes others.
void write_alpha(JsonWriter& writer, double alpha) {
  constexpr double kMostExact = 9007199254740992;  // 2^53
  const bool is_whole = std::abs(alpha) < kMostExact && std::trunc(alpha) == alpha;
  writer.key("lora_alpha");
  is_whole ? writer.integer(static_cast<std::int64_t>(alpha)) : writer.real(alpha);
}

/// Whether PEFT has to be told that linears are gpt2's Conv1D.
bool has_swapped_linears(const Graph& graph) {
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) {
      if (op.kind == OpKind::linear && op.attributes.transposed_weight) return true;
    }
  }
  return false;
}

/// Modules with adapters, or the others.
std::vector<std::string> modules(const Graph& graph, bool adapted) {
  const std::vector<bool> is_adapter = adapter_parameters(graph);
  std::set<std::string> with, all;
  for (std::size_t i = 0; i < is_adapter.size(); ++i) {
    const std::string_view module = module_of(graph.parameters[i].name);
    is_adapter[i] ? with.emplace(adapted_module(graph.parameters[i].name)) : all.emplace(module);
  }
  std::vector<std::string> names;
  std::ranges::copy_if(adapted ? with : all, std::back_inserter(names),
                       [&](const std::string& name) { return adapted || !with.contains(name); });
  return names;
}

void write_nulls(JsonWriter& writer, std::initializer_list<const char*> keys) {
  for (const char* key : keys) writer.key(key).null();
}

}  // namespace

PeftConfig peft_config_from_json(std::string_view text, const std::string& file) {
  const JsonValue document =
      parse_json(text, file, {.bytes = static_cast<std::size_t>(kLongestPeftConfig), .depth = 16});
  JsonObject object(document, file);
  const std::string type = object.text("peft_type");
  if (type != "LORA") {
    object.fail("peft_type",
                fmt::format("\"{}\" is not supported, only LORA; {}", printable(type, 40), kMergeWithPeft));
  }
  refuse_unsupported(document, object);
  PeftConfig config;
  config.lora.rank = object.integer("r", 1, kMostRank);
  config.lora.alpha = object.real("lora_alpha", kLeastAlpha, kMostAlpha);
  if (object.has("lora_dropout")) config.lora.dropout = object.real("lora_dropout", 0, kMostDropout);
  if (object.has("use_rslora")) config.lora.rank_stabilized = object.boolean("use_rslora");
  if (object.has("use_dora")) config.lora.has_magnitudes = object.boolean("use_dora");
  if (object.has("fan_in_fan_out")) config.fan_in_fan_out = object.boolean("fan_in_fan_out");
  read_targets(document, object, config);
  std::set<std::string_view> known(kIgnored.begin(), kIgnored.end());
  known.insert({"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "fan_in_fan_out",
                "target_modules", "bias", "exclude_modules", "layers_to_transform"});
  refuse_unknown(document, object, known);
  return config;
}

std::vector<std::string> peft_targets(const Graph& graph) {
  const std::vector<std::string> others = modules(graph, false);
  std::set<std::string> targets;
  for (const std::string& module : modules(graph, true)) {
    const std::string end = module.substr(module.rfind('.') + 1);
    const bool is_ambiguous = std::ranges::any_of(
        others, [&](const std::string& other) { return other == end || other.ends_with("." + end); });
    targets.insert(is_ambiguous ? module : end);
  }
  return {targets.begin(), targets.end()};
}

// The keys of PEFT 0.21 in its order, less those that turn something on which is off here and that older versions lack.
std::string peft_config_to_json(const Graph& graph, const Job& job, const std::string& base) {
  const Lora& lora = job.lora;
  JsonWriter writer;
  writer.begin_object();
  writer.key("alpha_pattern").begin_object().end_object();
  write_nulls(writer, {"auto_mapping"});
  writer.key("base_model_name_or_path");
  base.empty() ? writer.null() : writer.text(base);
  writer.member("bias", "none");
  writer.member("fan_in_fan_out", has_swapped_linears(graph)).member("inference_mode", true);
  writer.member("init_lora_weights", true);
  write_nulls(writer, {"layer_replication", "layers_pattern", "layers_to_transform"});
  writer.key("loftq_config").begin_object().end_object();
  write_alpha(writer, lora.alpha);
  writer.member("lora_dropout", lora.dropout);
  write_nulls(writer, {"megatron_config"});
  writer.member("megatron_core", "megatron.core");
  write_nulls(writer, {"modules_to_save"});
  writer.member("peft_type", "LORA").member("r", lora.rank);
  writer.key("rank_pattern").begin_object().end_object();
  write_nulls(writer, {"revision"});
  writer.member("target_modules", peft_targets(graph));
  writer.key("task_type");
  graph.masked_lm ? writer.null() : writer.text("CAUSAL_LM");
  writer.member("use_dora", lora.has_magnitudes).member("use_rslora", lora.rank_stabilized);
  return writer.end_object().take();
}

}  // namespace vramfit
