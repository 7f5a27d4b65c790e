#include "cli/launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

namespace vramfit {

std::vector<std::string> environment_with(const EnvironmentChanges& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (std::ranges::none_of(changes, [&](const auto& change) { return change.first == name; })) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : changes) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread of ours changes it
  return value == nullptr ? "" : value;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace vramfit
