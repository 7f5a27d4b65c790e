#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/text/suggest.h"
#include "job/cluster/cluster.h"

namespace vramfit {

namespace {

constexpr double kMostBandwidth = 1e15;  // bytes per second; far above any network

struct Unit {
  std::string_view name;
  double bytes_per_second;
};
constexpr std::array<Unit, 6> kUnits{
    {{"Gbps", 1e9 / 8}, {"Gb/s", 1e9 / 8}, {"Tbps", 1e12 / 8}, {"Tb/s", 1e12 / 8}, {"GB/s", 1e9}, {"TB/s", 1e12}}};

[[noreturn]] void refuse(std::string_view text, const std::string& what) {
  throw InputError(fmt::format("--network {}: {}", printable(text), what));
}

constexpr std::string_view kGrammar = "expected a speed per card or node, such as 400Gbps/card or 50GB/s/node";

/// Takes "/card" or "/node" off the end; returns how many cards share the speed.
std::int64_t take_sharers(std::string_view text, std::string_view& speed, const Cluster& cluster) {
  for (const auto& [ending, cards] :
       {std::pair{std::string_view("/card"), std::int64_t{1}}, {"/node", cluster.cards_per_node}}) {
    if (!speed.ends_with(ending)) continue;
    speed.remove_suffix(ending.size());
    return cards;
  }
  refuse(text, std::string(kGrammar));
}

double bytes_per_second(std::string_view text, std::string_view speed) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(speed.data(), speed.data() + speed.size(), number, std::chars_format::fixed);
  const std::string_view name = speed.substr(static_cast<std::size_t>(end - speed.data()));
  for (const Unit& unit : kUnits) {
    if (error != std::errc{} || name != unit.name) continue;
    const double bandwidth = number * unit.bytes_per_second;
    if (!(bandwidth > 0 && bandwidth <= kMostBandwidth))
      refuse(text, "the speed must be above 0 and below 10^15 bytes per second");
    return bandwidth;
  }
  refuse(text, std::string(kGrammar));
}

}  // namespace

void set_network(Cluster& cluster, std::string_view text) {
  if (cluster.nodes == 1) {
    throw Conflict(fmt::format(
        "--network {}: {} is one node, which has no network to others; leave it out, or give NODESxCOUNTxCARD",
        printable(text), cluster.text));
  }
  std::string_view speed = text;
  const std::int64_t sharers = take_sharers(text, speed, cluster);
  cluster.network_bandwidth = bytes_per_second(text, speed) / static_cast<double>(sharers);
  cluster.network_origin = "set by --network";
}

std::string network_note(const Cluster& cluster) {
  if (cluster.nodes == 1 || cluster.network_bandwidth <= 0) return "";
  return fmt::format("network between nodes: {:g} Gb/s per card ({})", cluster.network_bandwidth * 8 / 1e9,
                     cluster.network_origin.empty() ? "from the file" : cluster.network_origin);
}

}  // namespace vramfit
