#include "cli/configs/tools/liger.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/configs/key_table.h"
#include "cli/configs/syntax/json.h"
#include "job/fields/kernels_text.h"

namespace vramfit {

namespace {

std::string last_word(const std::string& key) { return key.substr(key.rfind('.') + 1); }

void set_part(std::string_view part, const Setting& setting, Draft& draft) {
  draft.set(liger_fact(part), setting.flag() ? "on" : "off", setting, fmt::format("Liger's {}", part));
}
void read_part(const Setting& setting, Draft& draft) { set_part(last_word(setting.key), setting, draft); }

constexpr std::array kParts{
    KeyRow{"rope", read_part},  KeyRow{"rms_norm", read_part},      KeyRow{"swiglu", read_part},
    KeyRow{"geglu", read_part}, KeyRow{"cross_entropy", read_part}, KeyRow{"fused_linear_cross_entropy", read_part},
};
constexpr std::array kIgnored{IgnoredKeys{"models that have rules here have no such layers", "layer_norm"}};
constexpr KeyTable kTable{"liger_kernel_config", kParts, {}, kIgnored};

/// A configuration of Liger's without Liger itself.
void ignore_config(Draft& draft) {
  const auto is_part = [](const Finding& each) { return each.key.starts_with("liger_kernel_config"); };
  for (const Finding& each : draft.understood) {
    if (!is_part(each)) continue;
    draft.ignored.push_back(each);
    draft.ignored.back().says = "without use_liger_kernel it changes nothing";
  }
  std::erase_if(draft.understood, is_part);
}

struct AxolotlKey {
  std::string_view key, part, other = "";
};
constexpr std::array kAxolotlKeys{
    AxolotlKey{"liger_rope", "rope"},
    AxolotlKey{"liger_rms_norm", "rms_norm"},
    AxolotlKey{"liger_glu_activation", "swiglu", "geglu"},
    AxolotlKey{"liger_swiglu", "swiglu", "geglu"},
    AxolotlKey{"liger_cross_entropy", "cross_entropy"},
    AxolotlKey{"liger_fused_linear_cross_entropy", "fused_linear_cross_entropy"},
};

}  // namespace

std::string liger_fact(std::string_view part) { return fmt::format("Liger's {}", part); }

void read_liger(const Setting& setting, Draft& draft) {
  draft.set(fact::kLiger, setting.flag() ? "on" : "off", setting);
}

void read_liger_config(const Setting& setting, Draft& draft) {
  if (setting.node->is_scalar() && setting.node->text.starts_with('{')) {
    ConfigNode map = read_json(setting.node->text, setting.file);
    for (ConfigNode& item : map.items) item.line = setting.node->line;
    draft.pass_over(setting);
    return read_keys({setting.file, setting.key, &map}, kTable, draft);
  }
  if (!setting.node->is_map()) setting.fail(fmt::format("{} is not a map", shown(*setting.node)));
  read_keys(setting, kTable, draft);
}

void read_plugins(const Setting& setting, Draft& draft) {
  const std::vector<std::string> plugins = setting.texts();
  const bool is_liger_alone = std::ranges::all_of(plugins, [](const std::string& plugin) {
    return plugin.starts_with("axolotl.integrations.liger.") && plugin.ends_with("LigerPlugin");
  });
  if (!is_liger_alone) return draft.not_modelled(setting, "a plugin, which may change what is computed");
  if (plugins.empty()) return draft.ignore(setting, "off");
  draft.derive(fact::kLigerPlugin, "on");
  draft.understand(setting, "Liger's kernels, of which the file's liger_ keys name the parts");
}

void read_axolotls_liger(const Setting& setting, Draft& draft) {
  const auto* const row = std::ranges::find(kAxolotlKeys, setting.key, &AxolotlKey::key);
  set_part(row->part, setting, draft);
  if (!row->other.empty()) draft.derive(liger_fact(row->other), setting.flag() ? "on" : "off");
}

/// integrations/liger/plugin.py: pre_model_load.
void finish_axolotls_liger(Draft& draft) {
  bool has_parts = false;
  for (const LigerPart& part : liger_parts()) {
    const std::string name = liger_fact(part.name);
    has_parts = has_parts || draft.is(name, "on");
    if (!draft.has(name)) draft.derive(name, "off");
  }
  if (!draft.is(fact::kLigerPlugin, "on")) {
    if (has_parts) draft.note("without axolotl's Liger plugin its liger_ keys change nothing");
    return;
  }
  draft.derive(fact::kLiger, has_parts ? "on" : "off");
}

void finish_liger(Draft& draft) {
  if (!draft.is(fact::kLiger, "on")) return ignore_config(draft);
  if (draft.is(liger_fact("cross_entropy"), "on") && draft.is(liger_fact("fused_linear_cross_entropy"), "on")) {
    return draft.not_modelled("Liger's cross_entropy and fused_linear_cross_entropy are both on, which Liger refuses");
  }
  std::string text = "liger";
  for (const LigerPart& part : liger_parts()) {
    const auto value = draft.get(liger_fact(part.name));
    if (value) text += fmt::format("{}{}={}", text == "liger" ? ":" : ",", part.name, *value);
  }
  draft.derive("kernels", text);
}

}  // namespace vramfit
