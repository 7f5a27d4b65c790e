#include "cli/rehearse/search/search.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 50;
constexpr std::size_t kMostCombinations = 1000;
constexpr const char* kForms = "expected NAME=FIRST..LAST or NAME=VALUE,VALUE,..., such as bs=1..64";

bool is_name(std::string_view text) {
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::ranges::all_of(text, is_letter);
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string in_braces(const std::string& name) { return "{" + name + "}"; }

void read_range(SearchAxis& axis, std::string_view first, std::string_view last) {
  axis.is_range = true;
  axis.first = whole_number(trimmed(first), 0, kLargest);
  axis.last = whole_number(trimmed(last), 0, kLargest);
  if (axis.last < axis.first) throw InputError(fmt::format("{} is more than {}", axis.first, axis.last));
}

void read_values(SearchAxis& axis, std::string_view text) {
  for (const std::string& value : split_list(text)) {
    axis.values.emplace_back(trimmed(value));
    if (axis.values.back().empty()) throw InputError("a value is empty");
  }
  const std::set<std::string> different(axis.values.begin(), axis.values.end());
  if (different.size() != axis.values.size()) throw InputError("a value comes twice");
}

void check_use(const SearchAxis& axis, const std::vector<std::string>& command) {
  const bool is_used = std::ranges::any_of(
      command, [&](const std::string& word) { return word.find(in_braces(axis.name)) != std::string::npos; });
  if (!is_used) {
    throw InputError(fmt::format("--search {0}: CMD has no {{{0}}}, where the value would go", axis.name));
  }
}

}  // namespace

SearchAxis parse_search_axis(std::string_view text) {
  const auto fail = [&](std::string_view why) {
    return InputError(fmt::format("--search {}: {}", printable(text, 80), why));
  };
  std::size_t at = text.find('='), length = 1;
  if (at == std::string_view::npos) at = text.find(" in "), length = 4;
  if (at == std::string_view::npos) throw fail(kForms);
  SearchAxis axis;
  axis.name = trimmed(text.substr(0, at));
  if (!is_name(axis.name)) throw fail("a name has letters, digits and underscores");
  const std::string_view values = trimmed(text.substr(at + length));
  const std::size_t dots = values.find("..");
  try {
    if (dots == std::string_view::npos) {
      read_values(axis, values);
    } else {
      read_range(axis, values.substr(0, dots), values.substr(dots + 2));
    }
  } catch (const InputError& error) {
    throw fail(error.what());
  }
  return axis;
}

std::vector<SearchAxis> parse_search(const std::vector<std::string>& texts, const std::vector<std::string>& command) {
  std::vector<SearchAxis> axes;
  std::size_t product = 1, ranges = 0;
  for (const std::string& text : texts) {
    SearchAxis axis = parse_search_axis(text);
    if (std::ranges::find(axes, axis.name, &SearchAxis::name) != axes.end()) {
      throw InputError(fmt::format("--search {}: is searched already", axis.name));
    }
    check_use(axis, command);
    ranges += axis.is_range ? 1 : 0;
    if (ranges > 1)
      throw InputError(fmt::format("--search {}: one range is possible; list the values of the others", axis.name));
    if (!axis.is_range) product *= std::min(axis.values.size(), kMostCombinations + 1);
    if (product > kMostCombinations) {
      throw InputError(fmt::format("--search {}: more than {} combinations of values", axis.name, kMostCombinations));
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<std::string> with_values(const std::vector<std::string>& words, const SearchPoint& point) {
  std::vector<std::string> replaced;
  for (const std::string& word : words) {
    std::string text;
    for (std::size_t at = 0; at < word.size();) {
      const auto found = std::ranges::find_if(
          point, [&](const auto& each) { return word.compare(at, each.first.size() + 2, in_braces(each.first)) == 0; });
      text += found == point.end() ? word.substr(at, 1) : found->second;
      at += found == point.end() ? 1 : found->first.size() + 2;
    }
    replaced.push_back(std::move(text));
  }
  return replaced;
}

std::string point_text(const SearchPoint& point) {
  std::string text;
  for (const auto& [name, value] : point)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, printable(value, 60));
  return text;
}

bool RehearsalTrial::is_failure() const {
  return !is_interrupted && exit_code != 0 && exit_code != static_cast<int>(ExitCode::out_of_memory);
}

const RehearsalTrial* SearchRow::failed() const {
  const auto found = std::ranges::find_if(
      trials, [](const RehearsalTrial& trial) { return trial.is_interrupted || trial.is_failure(); });
  return found == trials.end() ? nullptr : &*found;
}

std::optional<std::pair<std::size_t, std::size_t>> SearchRow::falling() const {
  for (std::size_t index = 1; index < trials.size(); ++index) {
    const RehearsalTrial &smaller = trials[index - 1], &larger = trials[index];
    const bool both_ran = smaller.exit_code == 0 && larger.exit_code == 0;
    if (both_ran && larger.total < smaller.total) return std::pair(index - 1, index);
  }
  return std::nullopt;
}

const SearchAxis* SearchResult::range() const {
  const auto found = std::ranges::find_if(axes, &SearchAxis::is_range);
  return found == axes.end() ? nullptr : &*found;
}

int SearchResult::exit_code() const {
  for (const SearchRow& row : rows) {
    if (const RehearsalTrial* failed = row.failed()) return failed->exit_code;
  }
  const bool any = std::ranges::any_of(rows, [](const SearchRow& row) { return row.largest.has_value(); });
  return any ? 0 : static_cast<int>(ExitCode::out_of_memory);
}

}  // namespace vramfit
