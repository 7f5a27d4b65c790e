#include "planner/cost/prices.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/sourced_figure.h"
#include "base/text/suggest.h"
#include "job/cluster/card_names.h"
#include "job/fields/field_text.h"
#include "planner/cost/prices_json.h"

namespace vramfit {

namespace {

constexpr double kMostPerHour = 1e6;
constexpr double kSecondsPerHour = 3600;

const std::map<std::string, Price>& catalog_prices() {
  static const std::map<std::string, Price> kPrices = parse_prices(kPricesJson, "prices.json");
  return kPrices;
}

/// "2.5/h" or "2.5".
double per_hour(std::string_view text) {
  constexpr std::string_view kHour = "/h";
  if (text.ends_with(kHour)) text.remove_suffix(kHour.size());
  const double price = real_number(text, 0, kMostPerHour);
  if (price == 0) throw InputError("a price is more than 0");
  return price;
}

std::string name_of(const std::string& given) {
  const Card* card = find_card(given);
  return card == nullptr ? given : card->name;
}

/// A card's name, and what it costs an hour by a price of which `units` are an hour's.
std::pair<std::string, Price> priced_card(const JsonValue& row, double units, const JsonValue& origins,
                                          const std::string& file) {
  const std::string& name = json_member(row, "card", file).text;
  const Card* card = find_card(name);
  if (card == nullptr || card->name != name) throw InputError(fmt::format("{}: card {}: unknown", file, name));
  const std::string where = fmt::format("{}: {}", file, name);
  const double price = units * sourced_figure(row, "price", origins, where);
  const std::string& origin = json_member(row, "price", where).items[1].text;
  return {name, {.per_gpu_hour = price, .origin = json_member(origins, origin, where).text, .is_dollars = true}};
}

}  // namespace

std::map<std::string, Price> parse_prices(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  const JsonValue& origins = json_member(document, "origins", file);
  std::map<std::string, Price> prices;
  for (const auto& [unit, seconds] : {std::pair{"usd_per_second", kSecondsPerHour}, std::pair{"usd_per_hour", 1.0}}) {
    for (const JsonValue& row : json_member(document, unit, file).items) {
      const auto& [name, price] = priced_card(row, seconds, origins, file);
      if (!prices.emplace(name, price).second) throw InputError(fmt::format("{}: {}: has two prices", file, name));
    }
  }
  return prices;
}

Prices::Prices(std::string_view text) : are_given_(true) {
  try {
    for (const std::string& part : split_list(text)) {
      if (part.find('=') == std::string::npos) {
        if (every_) throw InputError("two prices for every GPU; name the cards: H100-80GB=2.5/h,RTX4090=0.4/h");
        every_ = per_hour(part);
        continue;
      }
      const auto [name, price] = key_and_value(part);
      if (!by_name_.emplace(name_of(name), per_hour(price)).second) {
        throw InputError(fmt::format("two prices for {}", printable(name)));
      }
    }
  } catch (const InputError& error) {
    throw InputError(fmt::format("--price {}: {}", printable(text), error.what()));
  }
}

std::optional<Price> Prices::of(const Card& card) const {
  if (are_given_) {
    const auto named = by_name_.find(card.name);
    const std::optional<double> price = named != by_name_.end() ? named->second : every_;
    if (!price) return std::nullopt;
    return Price{.per_gpu_hour = *price, .origin = "set by --price", .is_dollars = false};
  }
  const auto known = catalog_prices().find(card.name);
  return known == catalog_prices().end() ? std::nullopt : std::optional(known->second);
}

void Prices::require_any_of(const std::vector<Cluster>& clusters) const {
  const auto is_named = [&](const Cluster& cluster) { return by_name_.contains(cluster.card.name); };
  if (by_name_.empty() || every_ || std::ranges::any_of(clusters, is_named)) return;
  throw InputError(
      fmt::format("--price {}=...: changes nothing: --gpus has none of these cards", by_name_.begin()->first));
}

}  // namespace vramfit
