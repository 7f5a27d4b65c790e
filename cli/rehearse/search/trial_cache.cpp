#include "cli/rehearse/search/trial_cache.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "base/numbers/mix_bits.h"
#include "base/numbers/most_bytes.h"
#include "base/text/suggest.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/rehearse/launchers/launcher_shims.h"
#include "cli/rehearse/processes/program_file.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostCode = 255;

std::string line_of(const std::string& key, const RehearsalTrial& trial) {
  JsonWriter writer(JsonForm::one_line);
  writer.begin_object().member("key", key).member("verdict", trial.verdict).member("why", trial.why);
  writer.member("total_bytes", trial.total).member("exit_code", trial.exit_code).end_object();
  return writer.take();
}

std::pair<std::string, RehearsalTrial> read_line(std::string_view line, const std::string& place) {
  const JsonValue value = parse_json(line, place);
  JsonObject object(value, place);
  RehearsalTrial trial{.point = {},
                       .verdict = object.text("verdict"),
                       .why = object.text("why"),
                       .total = {object.integer("total_bytes", 0, kMostStatedBytes)},
                       .exit_code = static_cast<int>(object.integer("exit_code", 0, kMostCode)),
                       .is_interrupted = false,
                       .is_cached = true};
  std::string key = object.text("key");
  object.finish();
  return {std::move(key), std::move(trial)};
}

}  // namespace

TrialCache::TrialCache(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (path_.empty() || !std::filesystem::exists(path_, error)) return;
  text_ = read_file(path_);
  std::size_t number = 0;
  for (std::size_t at = 0; at < text_.size();) {
    const std::size_t end = std::min(text_.find('\n', at), text_.size());
    const std::string place = fmt::format("--cache {}, line {}", printable(path_), ++number);
    auto [key, trial] = read_line(std::string_view(text_).substr(at, end - at), place);
    trials_.insert_or_assign(std::move(key), std::move(trial));
    at = end + 1;
  }
  if (!text_.empty() && !text_.ends_with('\n')) text_ += '\n';
}

std::optional<RehearsalTrial> TrialCache::find(const std::string& key) const {
  const auto found = trials_.find(key);
  return found == trials_.end() ? std::nullopt : std::optional(found->second);
}

void TrialCache::put(const std::string& key, const RehearsalTrial& trial) {
  if (path_.empty()) return;
  trials_.insert_or_assign(key, trial);
  text_ += line_of(key, trial);
  write_file(path_, text_);
}

std::string stamp_of(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return fmt::format("{} {}", size, std::filesystem::last_write_time(path, error).time_since_epoch().count());
}

std::string contents_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";
  constexpr std::uintmax_t kMostRead = std::uintmax_t{16} << 20;
  const auto size = std::filesystem::file_size(path, error);
  if (error || size > kMostRead) return stamp_of(path);
  try {
    return read_file(path);
  } catch (const InputError&) {
    return stamp_of(path);
  }
}

std::string key_of(const std::vector<std::string>& parts) {
  std::uint64_t hash = fnv1a("vramfit"), other = fnv1a("rehearsal");
  for (const std::string& part : parts) {
    const std::string measured = fmt::format("{}:{}", part.size(), part);
    hash = fnv1a(measured, hash);
    other = fnv1a(measured, mix_bits(other));
  }
  return fmt::format("{:016x}{:016x}", hash, other);
}

std::string trial_key(const RehearsalRequest& request, const std::vector<std::string>& command) {
  std::error_code error;
  const bool is_played =
      (request.played_rank || request.cluster.nodes > 1) && has_shim(command[0]);  // it need not be installed
  std::vector<std::string> parts{version_text(), std::filesystem::current_path(error).string(),
                                 session_to_json(request.cluster, request.played_rank, request.settings),
                                 is_played ? "" : contents_of(find_program(command[0]))};
  for (const std::string& word : command) {
    parts.push_back(word);
    parts.push_back(contents_of(word));
  }
  return key_of(parts);
}

}  // namespace vramfit
