#include "program/files/checkpoint_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool read = error == std::errc() && end == digits.data() + digits.size() && step > 0;
  if (!read || name != checkpoint_name(step)) return std::nullopt;
  return step;
}

std::vector<std::int64_t> steps_among(const std::vector<std::string>& names) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<std::int64_t> step = checkpoint_step(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

std::vector<std::int64_t> committed_steps(const std::string& directory) { return steps_among(names_in(directory)); }

}  // namespace vramfit
