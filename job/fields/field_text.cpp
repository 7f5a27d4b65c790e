#include "job/fields/field_text.h"

#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {

void unknown_value(std::string_view value, const std::vector<std::string>& known) {
  throw InputError(fmt::format("unknown value \"{}\"{}", printable(value), did_you_mean(value, known)));
}

std::int64_t whole_number(std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range || (error == std::errc{} && (value < least || value > most))) {
    throw InputError(fmt::format("{} is outside {} to {}", printable(text, 40), least, most));
  }
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw InputError(fmt::format("\"{}\" is not a whole number", printable(text, 40)));
  }
  return value;
}

double real_number(std::string_view text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  if (!read || value < least || value > most) {
    throw InputError(fmt::format("\"{}\" is not a number from {} to {}", printable(text, 40), least, most));
  }
  return value;
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::pair<std::string, std::string> key_and_value(const std::string& part) {
  const std::size_t equals = part.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError(fmt::format("\"{}\" is not KEY=VALUE", printable(part)));
  }
  return {part.substr(0, equals), part.substr(equals + 1)};
}

}  // namespace vramfit
