#include "base/numbers/sourced_figure.h"

#include <algorithm>

#include "base/error.h"

namespace vramfit {

namespace {

[[noreturn]] void fail(const std::string& where, std::string_view key, const std::string& what) {
  throw InputError(where + ": " + std::string(key) + ": " + what);
}

}  // namespace

const JsonValue& json_member(const JsonValue& object, std::string_view key, const std::string& where) {
  const auto found = std::ranges::find(object.keys, key);
  if (found == object.keys.end()) fail(where, key, "missing");
  return object.items[static_cast<std::size_t>(found - object.keys.begin())];
}

double sourced_figure(const JsonValue& object, std::string_view key, const JsonValue& origins,
                      const std::string& where) {
  const JsonValue& pair = json_member(object, key, where);
  if (pair.kind != JsonValue::Kind::array || pair.items.size() != 2) fail(where, key, "is not [number, origin]");
  if (!(pair.items[0].real > 0)) fail(where, key, "is not a positive number");
  if (std::ranges::find(origins.keys, pair.items[1].text) == origins.keys.end()) fail(where, key, "unknown origin");
  return pair.items[0].real;
}

}  // namespace vramfit
