#include "cli/rehearse/processes/session_folder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostRealBytes = std::int64_t{1} << 40, kMostSeed = std::int64_t{1} << 62;

/// One of `words`, or `seeded` followed by ":SEED"; SEED is 0 if omitted.
std::string choice(const std::string& value, const std::vector<std::string>& words, const std::string& seeded) {
  const std::size_t colon = value.find(':');
  const std::string word = value.substr(0, colon);
  if (word == seeded) {
    const std::string seed = colon == std::string::npos ? "0" : value.substr(colon + 1);
    return fmt::format("{}:{}", seeded, whole_number(seed, 0, kMostSeed));
  }
  if (std::ranges::find(words, value) != words.end()) return value;
  std::vector<std::string> known = words;
  known.push_back(seeded + ":SEED");
  unknown_value(value, known);
}

std::string one_of(const std::string& value, const std::vector<std::string>& words) {
  if (std::ranges::find(words, value) == words.end()) unknown_value(value, words);
  return value;
}

std::string make_kept_folder(const std::string& wanted) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(wanted, error);
  std::filesystem::create_directories(path, error);
  if (error) throw FaultError(fmt::format("--keep {}: can't be made: {}", printable(wanted), error.message()));
  if (!std::filesystem::is_empty(path, error) || error) {
    throw InputError(fmt::format("--keep {}: is not an empty folder", printable(wanted)));
  }
  if (::access(path.c_str(), W_OK) != 0) {
    throw FaultError(fmt::format("--keep {}: can't be written", printable(wanted)));
  }
  return path.string();
}

}  // namespace

void set_phantom_setting(PhantomSettings& settings, const std::string& key, const std::string& value) {
  using Setter = void (*)(PhantomSettings&, const std::string&);
  static const std::map<std::string, Setter> kSetters{
      {"addresses",
       [](auto& s, auto& v) {
         s.addresses = choice(v, {"ascending", "descending", "driver"}, "shuffled");
       }},
      {"completion", [](auto& s, auto& v) { s.completion = choice(v, {"immediate"}, "late"); }},
      {"real-bytes", [](auto& s, auto& v) { s.real_bytes = whole_number(v, 0, kMostRealBytes); }},
      {"values",
       [](auto& s, auto& v) {
         s.values = one_of(v, {"computed", "unknown"});
       }},
      {"routing",
       [](auto& s, auto& v) {
         s.routing = choice(v, {"balanced", "worst"}, "drawn");
       }},
      {"selected", [](auto& s, auto& v) { s.selected = real_number(v, 0, 1); }},
      {"integer-bytes", [](auto& s, auto& v) { s.integer_bytes = whole_number(v, 0, kMostRealBytes); }},
      {"workspaces",
       [](auto& s, auto& v) {
         s.workspaces = one_of(v, {"zero", "bound"});
       }},
      {"float-bytes", [](auto& s, auto& v) { s.float_bytes = whole_number(v, 0, kMostRealBytes); }}};
  const auto setter = kSetters.find(key);
  if (setter != kSetters.end()) return setter->second(settings, value);
  std::vector<std::string> known;
  for (const auto& [name, unused] : kSetters) known.push_back(name);
  throw InputError(fmt::format("unknown key{}", did_you_mean(key, known)));
}

PhantomSettings parse_phantom_settings(const std::string& text) {
  PhantomSettings settings;
  if (text.empty()) return settings;
  for (const std::string& part : split_list(text)) {
    auto [key, value] = key_and_value(part);
    std::ranges::replace(key, '_', '-');
    try {
      set_phantom_setting(settings, key, value);
    } catch (const InputError& error) {
      throw InputError(fmt::format("--set {}: {}", printable(key, 40), error.what()));
    }
  }
  return settings;
}

std::string session_to_json(const Cluster& cluster, std::optional<std::int64_t> played_rank,
                            const PhantomSettings& settings) {
  const Card& card = cluster.card;
  const int capability = card.device.compute_capability;
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/phantom-session@1");
  writer.member("nodes", cluster.nodes).member("cards_per_node", cluster.cards_per_node);
  if (played_rank) writer.member("played_rank", *played_rank);
  writer.key("card").begin_object();
  writer.member("catalog_name", card.name).member("name", card.cuda_name.empty() ? card.name : card.cuda_name);
  writer.member("compute_capability", fmt::format("{}.{}", capability / 10, capability % 10));
  writer.member("sm_count", card.device.sm_count).member("memory_bytes", card.memory);
  writer.member("context_bytes", card.context).member("nccl_bytes", card.nccl).end_object();
  writer.key("settings").begin_object();
  writer.member("addresses", settings.addresses).member("completion", settings.completion);
  writer.member("real_bytes", settings.real_bytes).member("trace", settings.trace);
  writer.member("values", settings.values).member("routing", settings.routing);
  writer.member("selected", settings.selected).member("integer_bytes", settings.integer_bytes);
  writer.member("float_bytes", settings.float_bytes).member("workspaces", settings.workspaces).end_object();
  writer.end_object();
  return writer.take();
}

SessionFolder::SessionFolder(const std::string& keep) {
  if (keep.empty()) {
    path_ = removed_.emplace("rehearsal").path();
  } else {
    path_ = make_kept_folder(keep);
  }
}

}  // namespace vramfit
