#include "cli/configs/draft.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"

namespace vramfit {
namespace {

using Kind = ConfigNode::Kind;

std::string lower(std::string_view text) {
  std::string folded(text);
  std::ranges::transform(folded, folded.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return folded;
}

Finding finding_of(const Setting& by, std::string says) {
  return {.file = by.file, .line = by.node->line, .key = by.key, .value = shown(*by.node), .says = std::move(says)};
}

std::string flag_and_value(std::string_view name, const std::string& value) {
  const auto fields = job_fields();
  const auto field = std::ranges::find(fields, name, &JobField::name);
  return field == fields.end() ? fmt::format("{}: {}", name, value) : fmt::format("{} {}", flag_of(*field), value);
}

}  // namespace

std::string zero3_fact(std::string_view size) { return fmt::format("ZeRO-3's {}", size); }

void Setting::fail(const std::string& what) const {
  throw InputError(fmt::format("{}{}: {}", place(file, node->line), printable(key), what));
}

std::int64_t Setting::whole(std::int64_t least, std::int64_t most) const {
  const ConfigNode value = node->kind == Kind::text ? text_node(node->text, node->line) : *node;
  if (value.kind == Kind::integer && value.integer >= least && value.integer <= most) return value.integer;
  if (value.kind == Kind::real && std::floor(value.real) == value.real && value.real >= static_cast<double>(least) &&
      value.real <= static_cast<double>(most)) {
    return static_cast<std::int64_t>(value.real);
  }
  fail(fmt::format("{} is not a whole number from {} to {}", shown(*node), least, most));
}

double Setting::real() const {
  const ConfigNode value = node->kind == Kind::text ? text_node(node->text, node->line) : *node;
  if ((value.kind == Kind::integer || value.kind == Kind::real) && std::isfinite(value.real)) return value.real;
  fail(fmt::format("{} is not a number", shown(*node)));
}

bool Setting::flag() const {
  if (node->kind == Kind::boolean) return node->boolean;
  const std::string word = lower(node->text);
  if (node->is_scalar()) {
    for (const std::string_view on : {"true", "yes", "on", "1", "t", "y"}) {
      if (word == on) return true;
    }
    for (const std::string_view off : {"false", "no", "off", "0", "f", "n"}) {
      if (word == off) return false;
    }
  }
  fail(fmt::format("{} is neither true nor false", shown(*node)));
}

std::string Setting::text() const {
  if (!node->is_scalar()) fail(fmt::format("{} is not a single value", shown(*node)));
  constexpr std::size_t kLongest = 300;
  if (printable(node->text, kLongest) != node->text) fail("holds control characters, or is too long");
  return node->text;
}

std::vector<std::string> Setting::texts() const {
  std::vector<std::string> list;
  if (node->is_list()) {
    for (const ConfigNode& item : node->items) list.push_back(Setting{file, key, &item}.text());
  } else {
    for (const std::string& part : split_list(text())) {
      if (!part.empty()) list.push_back(part);
    }
  }
  return list;
}

bool Setting::is_off() const {
  if (!node->is_scalar()) return node->items.empty();
  if (node->kind == Kind::boolean) return !node->boolean;
  if (node->kind == Kind::integer || node->kind == Kind::real) return node->real == 0;
  const std::string word = lower(node->text);
  return word.empty() || word == "none" || word == "no" || word == "false" || word == "off" || word == "null";
}

bool Setting::is(std::string_view word) const { return node->is_scalar() && lower(node->text) == lower(word); }

void Draft::set(std::string_view name, const std::string& value, const Setting& by, std::string says) {
  const auto fields = job_fields();
  std::string meant = value;
  if (const auto field = std::ranges::find(fields, name, &JobField::name); field != fields.end()) {
    Job job = unresolved_job();
    set_job_field(job, *field, value, fmt::format("{}{}", place(by.file, by.node->line), printable(by.key)));
    const std::string kept = field->get(job);
    if (!kept.empty()) meant = kept;
  }
  const auto found = values_.find(name);
  if (found != values_.end() && found->second.file.empty()) {
    forget(name);
  } else if (found != values_.end() && found->second.value != meant) {
    const Value& other = found->second;
    if (yields) {
      const bool is_of_file = other.file.ends_with("ml") || other.file.ends_with(".json");
      ignore(by, fmt::format("{} says {}", is_of_file ? printable(other.file, 300) : "the command line",
                             printable(other.value)));
      return;
    }
    by.fail(fmt::format("{} is {} here, and {} by {} in {}:{}; leave one of them out", name, printable(meant),
                        printable(other.value), printable(other.key), printable(other.file, 300), other.line));
  }
  values_[std::string(name)] = {meant, by.file, by.key, by.node->line};
  understand(by, says.empty() ? flag_and_value(name, meant) : std::move(says));
}

void Draft::assume(std::string_view name, const std::string& value, const std::string& why) {
  if (has(name)) return;
  values_[std::string(name)] = {.value = value, .file = {}, .key = {}};
  const std::string because = why.empty() ? "" : fmt::format(" ({})", why);
  assumed.push_back(
      {.file = {}, .key = std::string(name), .value = value, .says = flag_and_value(name, value) + because});
}

std::optional<std::string> Draft::get(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second.value);
}

void Draft::forget(std::string_view name) {
  if (const auto found = values_.find(name); found != values_.end()) values_.erase(found);
  std::erase_if(assumed, [&](const Finding& finding) { return finding.key == name; });
}

void Draft::derive(std::string_view name, const std::string& value) {
  if (has(name)) return;
  values_[std::string(name)] = {.value = value, .file = {}, .key = {}};
}

void Draft::understand(const Setting& by, std::string says) {
  said_.insert(by.node->number);
  understood.push_back(finding_of(by, std::move(says)));
}
void Draft::ignore(const Setting& by, std::string_view why) {
  closed_.insert(by.node->number);
  ignored.push_back(finding_of(by, std::string(why)));
}
void Draft::not_modelled(const Setting& by, std::string_view why) {
  closed_.insert(by.node->number);
  unmodelled.push_back(finding_of(by, std::string(why)));
}
void Draft::not_modelled(std::string why) {
  unmodelled.push_back({.file = {}, .key = {}, .value = {}, .says = std::move(why)});
}
void Draft::refer(const Setting& by, const std::string& path) {
  said_.insert(by.node->number);
  references_.push_back({.file = by.file, .line = by.node->line, .key = by.key, .value = path, .says = {}});
}

void Draft::list_unread(const ConfigNode& map, const std::string& file, const std::string& path) {
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    const ConfigNode& item = map.items[i];
    if (item.is_null() || closed_.contains(item.number)) continue;
    const std::string key = path.empty() ? map.keys[i] : fmt::format("{}.{}", path, map.keys[i]);
    if (item.is_map() && !item.items.empty()) {
      list_unread(item, file, key);
    } else if (item.is_map()) {
      ignore({item.file.empty() ? file : item.file, key, &item}, "empty, as if it weren't there");
    } else if (!said_.contains(item.number)) {
      ignore({item.file.empty() ? file : item.file, key, &item}, "vramfit knows of no such key there");
    }
  }
}

void Draft::note(std::string why) { assumed.push_back({.file = {}, .key = {}, .value = {}, .says = std::move(why)}); }

}  // namespace vramfit
