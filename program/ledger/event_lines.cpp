#include "program/ledger/event_lines.h"

#include <fmt/format.h>

#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/numbers/most_bytes.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostSteps = std::numeric_limits<std::int32_t>::max();

/// The value whose name the object holds under `key`.
template <typename Value>
Value value_named(JsonObject& object, std::string_view key, int values, std::string_view (*name_of)(Value)) {
  const std::string name = object.text(key);
  for (int i = 0; i < values; ++i) {
    if (name_of(static_cast<Value>(i)) == name) return static_cast<Value>(i);
  }
  object.fail(key, fmt::format("unknown value \"{}\"", printable(name)));
}

}  // namespace

Ledger ledger_from_lines(std::string_view text, const std::string& file, std::int32_t last_step) {
  Ledger ledger;
  std::unordered_map<std::string, int> labels;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string where = fmt::format("{}, line {}", file, number);
    const JsonValue value = parse_json(line, where);
    JsonObject object(value, where);
    Event event;
    event.step = static_cast<std::int32_t>(object.integer("step", 0, kMostSteps));
    if (event.step > last_step) break;
    event.bytes = object.integer("bytes", -kMostStatedBytes, kMostStatedBytes);
    event.category = value_named(object, "category", kCategories, category_name);
    event.phase = value_named(object, "phase", kPhases, phase_name);
    const std::string label = object.text("label");
    object.finish();
    const auto [entry, is_new] = labels.try_emplace(label, static_cast<int>(ledger.labels.size()));
    if (is_new) ledger.labels.push_back(label);
    event.label = entry->second;
    ledger.events.push_back(event);
  }
  return ledger;
}

}  // namespace vramfit
