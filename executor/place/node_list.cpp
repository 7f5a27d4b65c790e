#include "executor/place/node_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"

namespace vramfit {

namespace {

constexpr std::size_t kMostHosts = 65536, kLongestName = 253;
constexpr std::size_t kMostDigits = 9;

[[noreturn]] void fail(std::string_view text, const std::string& what) {
  throw InputError(fmt::format("\"{}\" is not a list of hosts such as node[01-03,07]: {}", printable(text, 80), what));
}

int number(std::string_view list, std::string_view digits) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.size() > kMostDigits || error != std::errc() || end != digits.data() + digits.size() || value < 0) {
    fail(list, fmt::format("\"{}\" is not a number of at most {} digits", printable(digits, 20), kMostDigits));
  }
  return value;
}

/// Appends each of `ends` to each of `names`.
void multiply(std::string_view list, std::vector<std::string>& names, const std::vector<std::string>& ends) {
  if (names.size() * ends.size() > kMostHosts) fail(list, fmt::format("more than {} hosts", kMostHosts));
  std::vector<std::string> product;
  product.reserve(names.size() * ends.size());
  for (const std::string& name : names) {
    for (const std::string& end : ends) product.push_back(name + end);
  }
  names = std::move(product);
}

/// The numbers between brackets, "01-03,07", as texts.
std::vector<std::string> expand_ranges(std::string_view list, std::string_view ranges) {
  std::vector<std::string> numbers;
  while (true) {
    const std::size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const int first = number(list, low);
    const int last = dash == std::string_view::npos ? first : number(list, range.substr(dash + 1));
    if (last < first) fail(list, fmt::format("\"{}\" runs backwards", printable(range, 40)));
    if (numbers.size() + static_cast<std::size_t>(last - first) >= kMostHosts) {
      fail(list, fmt::format("more than {} hosts", kMostHosts));
    }
    for (int value = first; value <= last; ++value) numbers.push_back(fmt::format("{:0{}}", value, low.size()));
    if (comma == std::string_view::npos) return numbers;
    ranges.remove_prefix(comma + 1);
  }
}

/// One element of the list: name parts and brackets by turns.
std::vector<std::string> expand_element(std::string_view list, std::string_view element) {
  std::vector<std::string> names{""};
  while (!element.empty()) {
    const std::size_t open = element.find('[');
    multiply(list, names, {std::string(element.substr(0, open))});
    if (open == std::string_view::npos) break;
    const std::size_t close = element.find(']', open);
    if (close == std::string_view::npos) fail(list, "a bracket is not closed");
    multiply(list, names, expand_ranges(list, element.substr(open + 1, close - open - 1)));
    element.remove_prefix(close + 1);
  }
  return names;
}

/// Where the element that begins the list ends: the first comma outside brackets.
std::size_t end_of_element(std::string_view rest) {
  bool inside = false;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '[') inside = true;
    if (rest[i] == ']') inside = false;
    if (rest[i] == ',' && !inside) return i;
  }
  return rest.size();
}

}  // namespace

bool is_host_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && text.front() != '-' && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' || c == '.' || c == '_';
  });
}

std::vector<std::string> expand_node_list(std::string_view text) {
  std::vector<std::string> hosts;
  std::string_view rest = text;
  while (true) {
    const std::size_t end = end_of_element(rest);
    for (std::string& host : expand_element(text, rest.substr(0, end))) {
      if (!is_host_name(host)) fail(text, fmt::format("\"{}\" can't be a host's name", printable(host, 40)));
      hosts.push_back(std::move(host));
    }
    if (hosts.size() > kMostHosts) fail(text, fmt::format("more than {} hosts", kMostHosts));
    if (end == rest.size()) return hosts;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace vramfit
