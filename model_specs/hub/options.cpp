#include "model_specs/hub/options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLongestToken = 4096, kLongestTotal = 86'400;

bool is_on(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  const std::array<std::string_view, 4> words{"1", "ON", "YES", "TRUE"};
  return std::find(words.begin(), words.end(), text) != words.end();
}

std::string first_of(const Environment& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = variable(name); !value.empty()) return value;
  }
  return "";
}

fs::path cache_home(const Environment& variable) {
  const std::string given = variable("XDG_CACHE_HOME");
  if (!given.empty() && given.front() == '/') return given;
  const std::string home = variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache";
}

std::string checked_token(std::string token, const std::string& from) {
  token.erase(0, token.find_first_not_of(" \t\r\n"));
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  const bool is_plain = std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!is_plain || std::ssize(token) > kLongestToken) {
    throw ModelError(from + ": holds characters that no token has");
  }
  return token;
}

std::string find_token(const Environment& variable, const fs::path& hf_home) {
  if (is_on(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return "";
  const std::string given = first_of(variable, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (!given.empty()) return checked_token(given, "HF_TOKEN");
  const std::string named = variable("HF_TOKEN_PATH");
  const fs::path path = named.empty() ? hf_home / "token" : fs::path(named);
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  try {
    return checked_token(read_file(path, kModelFile, kLongestToken), path.string());
  } catch (const Error&) {
    if (!named.empty()) throw;
    return "";  // an unreadable token file at the default path means no token
  }
}

Url endpoint_of(const std::string& given) {
  try {
    Url url = parse_url(given.empty() ? "https://huggingface.co" : given);
    if (url.scheme != "https" && !url.is_loopback()) {
      throw ModelError("expected https://; http is for loopback only");
    }
    if (url.path.find('?') != std::string::npos) throw ModelError("a query");
    while (url.path.ends_with('/')) url.path.pop_back();
    return url;
  } catch (const ModelError& error) {
    throw ModelError(fmt::format("HF_ENDPOINT: {}", error.what()));
  }
}

std::int64_t total_seconds_of(const std::string& given, std::int64_t usual) {
  if (given.empty()) return usual;
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), seconds);
  const bool whole = error == std::errc{} && end == given.data() + given.size();
  if (whole && seconds >= 1 && seconds <= kLongestTotal) return seconds;
  throw ModelError(
      fmt::format("VRAMFIT_HUB_TIMEOUT: \"{}\": expected seconds from 1 to {}", printable(given, 40), kLongestTotal));
}

}  // namespace

std::string process_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

fs::path own_cache(const Environment& variable) {
  const std::string given = variable("VRAMFIT_CACHE");
  const fs::path home = cache_home(variable);
  return given.empty() && !home.empty() ? home / "vramfit" : fs::path(given);
}

HubOptions hub_options(const Environment& variable) {
  HubOptions options;
  const fs::path cache = cache_home(variable);
  const std::string hf_home_given = variable("HF_HOME");
  const fs::path hf_home = hf_home_given.empty() ? cache / "huggingface" : fs::path(hf_home_given);
  const std::string hub_cache = first_of(variable, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  options.hf_cache = hub_cache.empty() ? hf_home / "hub" : fs::path(hub_cache);
  if (const fs::path own = own_cache(variable); !own.empty()) options.own_cache = own / "hub";
  options.endpoint = endpoint_of(variable("HF_ENDPOINT"));
  options.total_seconds = total_seconds_of(variable("VRAMFIT_HUB_TIMEOUT"), options.total_seconds);
  options.offline = is_on(variable("HF_HUB_OFFLINE")) || is_on(variable("TRANSFORMERS_OFFLINE"));
  if (!options.offline) options.token = find_token(variable, hf_home);
  return options;
}

}  // namespace vramfit
