// PyYAML 6.0, yaml/resolver.py and constructor.py: which plain scalars are null, booleans, integers and floats. A float
// needs a dot and, in an exponent, a sign: `1e-4` and `1.0e4` are texts.
#include "base/text/characters.h"
#include "cli/configs/syntax/yaml.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace vramfit {
namespace {

using Kind = ConfigNode::Kind;

/// yes, Yes, YES: a word in one of the three forms that YAML 1.1 takes.
bool is_word(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  const auto is = [&](std::size_t i, bool upper) {
    return text[i] == (upper ? static_cast<char>(lower[i] - 'a' + 'A') : lower[i]);
  };
  bool all_lower = true, all_upper = true, capital = true;
  for (std::size_t i = 0; i < lower.size(); ++i) {
    all_lower &= is(i, false);
    all_upper &= is(i, true);
    capital &= is(i, i == 0);
  }
  return all_lower || all_upper || capital;
}

std::optional<bool> boolean_of(std::string_view text) {
  for (const std::string_view word : {"yes", "true", "on"}) {
    if (is_word(text, word)) return true;
  }
  for (const std::string_view word : {"no", "false", "off"}) {
    if (is_word(text, word)) return false;
  }
  return std::nullopt;
}

std::string_view without_sign(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text;
}

/// Digits with '_' between them, which mean nothing.
std::optional<std::int64_t> digits(std::string_view text, int base) {
  std::string kept;
  std::ranges::copy_if(text, std::back_inserter(kept), [](char c) { return c != '_'; });
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(kept.data(), kept.data() + kept.size(), value, base);
  if (kept.empty() || error != std::errc{} || end != kept.data() + kept.size()) return std::nullopt;
  return value;
}

/// 190:20:30 is 685230.
std::optional<std::int64_t> sexagesimal(std::string_view text) {
  constexpr std::int64_t kBase = 60, kMost = std::numeric_limits<std::int64_t>::max() / (2 * kBase);
  std::int64_t value = 0;
  for (bool first = true; !text.empty(); first = false) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    const auto part = digits(text.substr(0, colon), 10);
    if (!part || *part < 0 || (!first && *part >= kBase) || value > kMost || *part > kMost) return std::nullopt;
    value = kBase * value + *part;
    if (colon + 1 == text.size()) return std::nullopt;
    text.remove_prefix(std::min(colon + 1, text.size()));
  }
  return value;
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  const std::string_view number = without_sign(text);
  if (number.empty() || !is_digit(number.front())) return std::nullopt;
  std::optional<std::int64_t> value;
  if (number.starts_with("0b")) {
    value = digits(number.substr(2), 2);
  } else if (number.starts_with("0x")) {
    value = digits(number.substr(2), 16);
  } else if (number.front() == '0' && number.size() > 1) {
    value = digits(number.substr(1), 8);
  } else if (number.find(':') != std::string_view::npos) {
    value = sexagesimal(number);
  } else {
    value = digits(number, 10);
  }
  return value && text.front() == '-' ? std::optional(-*value) : value;
}

std::size_t leading_digits(std::string_view text) {
  std::size_t count = 0;
  while (count < text.size() && (is_digit(text[count]) || text[count] == '_')) ++count;
  return count;
}

/// [-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)? or \.[0-9][0-9_]*([eE][-+][0-9]+)?
bool is_decimal_float(std::string_view text) {
  const bool is_signed = text.starts_with('-') || text.starts_with('+');
  std::string_view rest = without_sign(text);
  const std::size_t whole = leading_digits(rest);
  if (whole > 0 && !is_digit(rest.front())) return false;
  rest.remove_prefix(whole);
  if (!rest.starts_with('.')) return false;
  rest.remove_prefix(1);
  const std::size_t fraction = leading_digits(rest);
  if (whole == 0 && (is_signed || fraction == 0 || !is_digit(rest.front()))) return false;
  rest.remove_prefix(fraction);
  if (rest.empty()) return true;
  if (rest.size() < 3 || (rest[0] != 'e' && rest[0] != 'E') || (rest[1] != '-' && rest[1] != '+')) return false;
  rest.remove_prefix(2);
  return std::ranges::all_of(rest, is_digit);
}

std::optional<double> real_of(std::string_view text) {
  const std::string_view unsigned_text = without_sign(text);
  if (is_word(unsigned_text.substr(std::min<std::size_t>(1, unsigned_text.size())), "inf") &&
      unsigned_text.starts_with('.')) {
    const double infinity = std::numeric_limits<double>::infinity();
    return text.front() == '-' ? -infinity : infinity;
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::numeric_limits<double>::quiet_NaN();
  if (!is_decimal_float(text)) return std::nullopt;
  std::string kept;
  std::ranges::copy_if(without_sign(text), std::back_inserter(kept), [](char c) { return c != '_'; });
  double value = 0;
  const auto [end, error] = std::from_chars(kept.data(), kept.data() + kept.size(), value);
  if (error == std::errc::result_out_of_range || end != kept.data() + kept.size()) return std::nullopt;
  return text.front() == '-' ? -value : value;
}

}  // namespace

ConfigNode plain_yaml_scalar(std::string_view text, int line) {
  ConfigNode node;
  node.text = text;
  node.line = line;
  if (text.empty() || text == "~" || is_word(text, "null")) return node;
  if (const auto boolean = boolean_of(text)) {
    node.kind = Kind::boolean;
    node.boolean = *boolean;
  } else if (const auto integer = integer_of(text)) {
    node.kind = Kind::integer;
    node.integer = *integer;
    node.real = static_cast<double>(*integer);
  } else if (const auto real = real_of(text)) {
    node.kind = Kind::real;
    node.real = *real;
  } else {
    node.kind = Kind::text;
  }
  return node;
}

}  // namespace vramfit
