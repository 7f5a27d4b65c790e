#include "phantom/core/session.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "vramfit phantom: %s; start programs through vramfit rehearse\n", what.c_str());
  std::_Exit(2);
}

std::uint64_t seed_of(std::string_view text) {
  const auto colon = text.find(':');
  return colon == std::string_view::npos ? 0 : std::stoull(std::string(text.substr(colon + 1)));
}

void set(Settings& settings, const std::string& key, const std::string& value) {
  const std::string word = value.substr(0, value.find(':'));
  if (key == "addresses" && (word == "ascending" || word == "descending" || word == "shuffled" || word == "driver")) {
    settings.addresses = word == "ascending"    ? AddressOrder::ascending
                         : word == "descending" ? AddressOrder::descending
                         : word == "driver"     ? AddressOrder::driver
                                                : AddressOrder::shuffled;
    settings.address_seed = seed_of(value);
  } else if (key == "completion" && (word == "immediate" || word == "late")) {
    settings.late_completion = word == "late";
    settings.completion_seed = seed_of(value);
  } else if (key == "real_bytes") {
    settings.real_bytes = std::stoll(value);
  } else if (key == "trace" && (word == "true" || word == "false")) {
    settings.trace = word == "true";
  } else if (key == "values" && (word == "computed" || word == "unknown")) {
    settings.computes_values = word == "computed";
  } else if (key == "routing" && (word == "balanced" || word == "worst" || word == "drawn")) {
    settings.worst_routing = word == "worst";
    settings.routing_seed = word == "drawn" ? static_cast<std::int64_t>(seed_of(value)) : -1;
  } else if (key == "integer_bytes") {
    settings.integer_bytes = std::stoll(value);
  } else if (key == "float_bytes") {
    settings.float_bytes = std::stoll(value);
  } else if (key == "selected") {
    settings.selected_share = std::stod(value);
  } else if (key == "workspaces" && (word == "zero" || word == "bound")) {
    settings.bounds_workspaces = word == "bound";
  } else if (key == "nccl_timeout") {
    settings.nccl_timeout = std::chrono::seconds(std::stoll(value));
  } else {
    throw std::invalid_argument(
        "setting " + key + "=" + value +
        ": unknown (known: addresses, completion, real_bytes, trace, values, routing, "
        "integer_bytes, float_bytes, selected, workspaces, nccl_timeout in seconds, and memory_bytes of a card)");
  }
}

/// For hosts that try what a program does on cards with less memory than whoever started it believes.
void set_from_environment(Session& session) {
  const char* text = std::getenv("VRAMFIT_PHANTOM_SET");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) throw std::invalid_argument("VRAMFIT_PHANTOM_SET: expected KEY=VALUE,...");
    const std::string key(item.substr(0, equals)), value(item.substr(equals + 1));
    if (key == "memory_bytes") {
      session.card.memory_bytes = std::stoll(value);
    } else {
      set(session.settings, key, value);
    }
  }
}

CardFacts read_card(const Json& json) {
  CardFacts card;
  card.catalog_name = json.at("catalog_name").get<std::string>();
  card.name = json.at("name").get<std::string>();
  const auto capability = json.at("compute_capability").get<std::string>();
  const auto point = capability.find('.');
  card.major = std::stoi(capability.substr(0, point));
  card.minor = point == std::string::npos ? 0 : std::stoi(capability.substr(point + 1));
  card.sm_count = json.at("sm_count").get<int>();
  card.memory_bytes = json.at("memory_bytes").get<std::int64_t>();
  card.context_bytes = json.at("context_bytes").get<std::int64_t>();
  card.nccl_bytes = json.at("nccl_bytes").get<std::int64_t>();
  return card;
}

Session read_session() {
  const char* folder = std::getenv("VRAMFIT_PHANTOM");
  if (folder == nullptr || *folder == '\0') refuse("VRAMFIT_PHANTOM does not name a session folder");
  const std::string path = std::string(folder) + "/session.json";
  try {
    std::ifstream file(path);
    if (!file) refuse("cannot read " + path);
    const Json json = Json::parse(file);
    if (json.at("schema") != "vramfit/phantom-session@1") refuse(path + ": not a phantom-session@1");
    Session session;
    session.folder = folder;
    session.card = read_card(json.at("card"));
    session.nodes = json.at("nodes").get<int>();
    session.cards_per_node = json.at("cards_per_node").get<int>();
    const Json rank = json.value("played_rank", Json());
    if (!rank.is_null()) session.played_rank = rank.get<int>();
    const Json settings = json.value("settings", Json::object());
    for (const auto& [key, value] : settings.items()) {
      set(session.settings, key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    set_from_environment(session);
    return session;
  } catch (const std::exception& error) {
    refuse(path + ": " + error.what());
  }
}

std::atomic<const Session*> current{nullptr};

}  // namespace

// Never destroyed: threads of PyTorch's ask for cards until the process is gone.
const Session& session() {
  const Session* found = current.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  static std::mutex reading;
  const std::lock_guard lock(reading);
  found = current.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = new Session(read_session());  // NOLINT(cppcoreguidelines-owning-memory)
    current.store(found, std::memory_order_release);
  }
  return *found;
}

}  // namespace vramfit::phantom

// For a fork of a process that has asked which cards there are, and has used none: from now on the session is the one
// that $VRAMFIT_PHANTOM names now (phantom/python/vramfit_warm).
extern "C" PHANTOM_CORE void vramfit_session_follow() {
  vramfit::phantom::current.store(nullptr);
  vramfit::phantom::forget_visible_cards();
}
