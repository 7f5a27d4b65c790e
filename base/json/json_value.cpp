#include "base/json/json_value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t kLongestName = 4096;  // of a file, in a message

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return "true or false";
    case Kind::integer:
      return "an integer";
    case Kind::real:
      return "a number";
    case Kind::text:
      return "a string";
    case Kind::array:
      return "a list";
    case Kind::object:
      return "an object";
  }
  return "unknown";
}

// Builds a JsonValue from the parser's events; the parser itself does not recurse.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const std::string& file, int depth)
      : text_(text), file_(printable(file, kLongestName)), depth_(depth) {}

  bool null() override { return add(Kind::null), true; }
  bool boolean(bool value) override { return add(Kind::boolean).boolean = value, true; }
  bool number_integer(number_integer_t value) override {
    JsonValue& added = add(Kind::integer);
    added.integer = value;
    added.real = static_cast<double>(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return number_float(static_cast<double>(value), "");
    }
    return number_integer(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    if (!std::isfinite(value)) throw InputError(fmt::format("{}: a number is out of range", file_));
    return add(Kind::real).real = value, true;
  }
  bool string(string_t& value) override { return add(Kind::text).text = value, true; }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override { return open(Kind::object); }
  bool start_array(std::size_t /*elements*/) override { return open(Kind::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) {
      throw InputError(fmt::format("{}: key \"{}\" appears twice in one object", file_, printable(name)));
    }
    open_.back()->keys.push_back(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    const std::string_view before = text_.substr(0, std::min(position, text_.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw InputError(fmt::format("{}: line {}: not valid JSON{}", file_, line,
                                 position >= text_.size() ? " (it ends too early)" : ""));
  }

  JsonValue take() { return std::move(root_); }

 private:
  JsonValue& add(Kind kind) {
    if (open_.empty()) {
      root_.kind = kind;
      return root_;
    }
    JsonValue& added = open_.back()->items.emplace_back();
    added.kind = kind;
    return added;
  }
  bool open(Kind kind) {
    if (static_cast<int>(open_.size()) >= depth_) {
      throw InputError(fmt::format("{}: nested deeper than {} levels", file_, depth_));
    }
    open_.push_back(&add(kind));  // stays valid: nothing is added to the parent before this one is closed
    names_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string file_;
  int depth_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  std::vector<std::unordered_set<std::string>> names_;
};

}  // namespace

JsonValue parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    throw InputError(fmt::format("{}: {} bytes are more than the {} that are read", file, text.size(), limits.bytes));
  }
  Builder builder(text, file, limits.depth);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

JsonObject::JsonObject(const JsonValue& value, std::string file, std::string path)
    : value_(&value), file_(printable(file, kLongestName)), path_(std::move(path)) {
  if (value.kind != Kind::object) {
    throw InputError(
        fmt::format("{}{}: is {}, not an object", file_, path_.empty() ? "" : ": " + path_, kind_name(value.kind)));
  }
}

std::string JsonObject::where(std::string_view key) const {
  return fmt::format("{}: {}{}{}: ", file_, path_, path_.empty() ? "" : ".", printable(key));
}

void JsonObject::fail(std::string_view key, const std::string& message) const {
  throw InputError(where(key) + message);
}

const JsonValue* JsonObject::find(std::string_view key) {
  skip(key);
  const auto found = std::find(value_->keys.begin(), value_->keys.end(), key);
  if (found == value_->keys.end()) return nullptr;
  return &value_->items[static_cast<std::size_t>(found - value_->keys.begin())];
}

const JsonValue& JsonObject::member(std::string_view key, Kind kind) {
  const JsonValue* found = find(key);
  if (found == nullptr) fail(key, "missing");
  const bool matches = found->kind == kind || (kind == Kind::real && found->kind == Kind::integer);
  if (!matches) fail(key, fmt::format("is {}, not {}", kind_name(found->kind), kind_name(kind)));
  return *found;
}

bool JsonObject::has(std::string_view key) {
  const JsonValue* found = find(key);
  return found != nullptr && found->kind != Kind::null;
}

bool JsonObject::is_null(std::string_view key) {
  const JsonValue* found = find(key);
  return found != nullptr && found->kind == Kind::null;
}

bool JsonObject::is_text(std::string_view key) {
  const JsonValue* found = find(key);
  return found != nullptr && found->kind == Kind::text;
}

std::string JsonObject::text(std::string_view key) { return member(key, Kind::text).text; }

bool JsonObject::boolean(std::string_view key) { return member(key, Kind::boolean).boolean; }

std::int64_t JsonObject::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  const std::int64_t value = member(key, Kind::integer).integer;
  if (value < least || value > most) fail(key, fmt::format("{} is outside {} to {}", value, least, most));
  return value;
}

std::vector<std::int64_t> JsonObject::integers(std::string_view key, std::int64_t least, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (const JsonValue& item : member(key, Kind::array).items) {
    if (item.kind != Kind::integer) fail(key, fmt::format("holds {}, not only integers", kind_name(item.kind)));
    if (item.integer < least || item.integer > most) {
      fail(key, fmt::format("{} is outside {} to {}", item.integer, least, most));
    }
    out.push_back(item.integer);
  }
  return out;
}

std::vector<double> JsonObject::reals(std::string_view key) {
  std::vector<double> out;
  for (const JsonValue& item : member(key, Kind::array).items) {
    const bool missing = item.kind == Kind::null;
    if (!missing && item.kind != Kind::real && item.kind != Kind::integer) {
      fail(key, fmt::format("holds {}, not only numbers", kind_name(item.kind)));
    }
    out.push_back(missing ? std::numeric_limits<double>::quiet_NaN() : item.real);
  }
  return out;
}

double JsonObject::real(std::string_view key, double least, double most) {
  const double value = member(key, Kind::real).real;
  if (value < least || value > most) fail(key, fmt::format("{} is outside {} to {}", value, least, most));
  return value;
}

JsonObject JsonObject::object(std::string_view key) {
  return {member(key, Kind::object), file_, fmt::format("{}{}{}", path_, path_.empty() ? "" : ".", key)};
}

std::vector<std::string> JsonObject::texts(std::string_view key) {
  std::vector<std::string> out;
  for (const JsonValue& item : member(key, Kind::array).items) {
    if (item.kind != Kind::text) fail(key, fmt::format("holds {}, not only strings", kind_name(item.kind)));
    out.push_back(item.text);
  }
  return out;
}

std::vector<JsonObject> JsonObject::objects(std::string_view key) {
  std::vector<JsonObject> out;
  const JsonValue& list = member(key, Kind::array);
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    out.emplace_back(list.items[i], file_, fmt::format("{}{}{}[{}]", path_, path_.empty() ? "" : ".", key, i));
  }
  return out;
}

void JsonObject::skip(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
}

void JsonObject::finish() const {
  for (const std::string& key : value_->keys) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      fail(key, "unknown key" + did_you_mean(printable(key), known_));
    }
  }
}

}  // namespace vramfit
