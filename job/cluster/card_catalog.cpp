#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/numbers/sourced_figure.h"
#include "job/cluster/cluster.h"
#include "job/cluster/context.h"
#include "job/cluster/gpus_json.h"

namespace vramfit {

namespace {

/// Throws for a catalog that was edited wrongly; a test reads all of it.
[[noreturn]] void fail(const std::string& where, std::string_view key, const std::string& what) {
  throw InputError("gpus.json: " + where + ": " + std::string(key) + ": " + what);
}

const JsonValue& member(const JsonValue& object, std::string_view key, JsonValue::Kind kind, const std::string& where) {
  const JsonValue& value = json_member(object, key, "gpus.json: " + where);
  if (value.kind != kind) fail(where, key, "is of another type");
  return value;
}

double figure(const JsonValue& card, std::string_view key, const JsonValue& origins, const std::string& where) {
  return sourced_figure(card, key, origins, "gpus.json: " + where);
}

/// [text, origin]; "" when the catalog does not know it.
std::string known_text(const JsonValue& card, std::string_view key, const JsonValue& origins,
                       const std::string& where) {
  if (std::ranges::find(card.keys, key) == card.keys.end()) return "";
  const JsonValue& pair = member(card, key, JsonValue::Kind::array, where);
  if (pair.items.size() != 2 || pair.items[0].text.empty()) fail(where, key, "is not [text, origin]");
  if (std::ranges::find(origins.keys, pair.items[1].text) == origins.keys.end()) fail(where, key, "unknown origin");
  return pair.items[0].text;
}

/// "9.0" -> 90.
int compute_capability(const std::string& text, const std::string& where) {
  const std::size_t point = text.find('.');
  if (point == std::string::npos || point + 2 != text.size()) fail(where, "compute_capability", "is not like \"9.0\"");
  return 10 * std::stoi(text.substr(0, point)) + (text[point + 1] - '0');
}

/// Figures that few cards have.
bool has_figure(const JsonValue& json, std::string_view key) {
  return std::ranges::find(json.keys, key) != json.keys.end();
}

/// Of what a process takes outside the allocator; communicators were measured on no card.
bool says_measured_context(const JsonValue& json, const std::string& name) {
  return member(json, "context_mib", JsonValue::Kind::array, name).items[1].text == "measured";
}

/// The NICs usual for one card, with what the document says of their origin; left out where none are usual.
void read_network(const JsonValue& json, const JsonValue& origins, Card& card) {
  if (!has_figure(json, "network_gbps")) return;
  card.network_bandwidth = figure(json, "network_gbps", origins, card.name) * 1e9 / 8;
  const std::string& origin = member(json, "network_gbps", JsonValue::Kind::array, card.name).items[1].text;
  card.network_origin = member(origins, origin, JsonValue::Kind::text, "origins").text;
}

Card read_card(const JsonValue& json, const JsonValue& origins) {
  using Kind = JsonValue::Kind;
  Card card;
  card.name = member(json, "name", Kind::text, "cards").text;
  for (const JsonValue& alias : member(json, "aliases", Kind::array, card.name).items) {
    card.aliases.push_back(alias.text);
  }
  card.cuda_name = known_text(json, "cuda_name", origins, card.name);
  const auto number = [&](std::string_view key) { return figure(json, key, origins, card.name); };
  const auto bytes = [&](std::string_view key, Bytes unit) {
    return Bytes{std::llround(number(key) * static_cast<double>(unit.n))};
  };
  card.device.kind = DeviceKind::cuda;
  card.device.name = card.name;
  card.device.compute_capability =
      compute_capability(member(json, "compute_capability", Kind::text, card.name).text, card.name);
  card.device.sm_count = static_cast<int>(number("sm_count"));
  card.sold_as_gb = member(json, "sold_as_gb", Kind::integer, card.name).integer;
  card.memory = bytes("memory_gib", kGiB);
  card.bf16_flops = number("bf16_tflops") * 1e12;
  card.fp32_flops = number("fp32_tflops") * 1e12;
  card.memory_bandwidth = number("memory_bandwidth_gbs") * 1e9;
  card.link_bandwidth = number("link_gbs") * 1e9;
  card.pcie_bandwidth = number("pcie_gbs") * 1e9;
  read_network(json, origins, card);
  card.context = bytes("context_mib", kMiB);
  card.pytorch_context = has_figure(json, "context_pytorch_mib") ? bytes("context_pytorch_mib", kMiB) : card.context;
  card.nccl = bytes("nccl_mib", kMiB);
  if (says_measured_context(json, card.name)) card.outside_origin = kMeasured;
  card.bf16 = member(json, "bf16", Kind::boolean, card.name).boolean;
  return card;
}

std::vector<Card> read_catalog() {
  const JsonValue document = parse_json(kGpusJson, "gpus.json");
  const JsonValue& origins = member(document, "origins", JsonValue::Kind::object, "document");
  std::vector<Card> cards;
  for (const JsonValue& card : member(document, "cards", JsonValue::Kind::array, "document").items) {
    cards.push_back(read_card(card, origins));
  }
  return cards;
}

}  // namespace

const std::vector<Card>& card_catalog() {
  static const std::vector<Card> kCards = read_catalog();
  return kCards;
}

}  // namespace vramfit
