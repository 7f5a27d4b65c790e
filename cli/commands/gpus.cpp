#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "job/cluster/card_names.h"
#include "job/cluster/cluster.h"

namespace vramfit {
namespace {

struct GpusFlags {
  std::string name;
  bool json = false;
};

std::vector<Card> wanted_cards(const std::string& name) {
  if (name.empty()) return card_catalog();
  const Card* const card = find_card(name);
  if (card == nullptr) throw InputError(fmt::format("\"{}\"{}", printable(name), unknown_card_hint(name)));
  return {*card};
}

std::string cards_json(const std::vector<Card>& cards) {
  JsonWriter writer;
  writer.begin_array();
  for (const Card& card : cards) {
    writer.begin_object().member("name", card.name).member("aliases", card.aliases);
    writer.member("memory_bytes", card.memory).member("compute_capability", card.device.compute_capability);
    writer.member("sm_count", card.device.sm_count).member("bf16", card.bf16).member("bf16_flops", card.bf16_flops);
    writer.member("fp32_flops", card.fp32_flops).member("memory_bandwidth", card.memory_bandwidth);
    writer.member("link_bandwidth", card.link_bandwidth).member("pcie_bandwidth", card.pcie_bandwidth);
    writer.member("context_bytes", card.context).member("pytorch_context_bytes", card.pytorch_context).end_object();
  }
  writer.end_array();
  return writer.take();
}

std::string cards_table(const std::vector<Card>& cards) {
  std::string text = fmt::format("{:<20}{:>8}{:>6}{:>6}{:>14}{:>10}{:>10}  {}\n", "card", "GiB", "cc", "SMs",
                                 "bf16 TFLOP/s", "GB/s", "link GB/s", "also called");
  for (const Card& card : cards) {
    text += fmt::format("{:<20}{:>8.1f}{:>6.1f}{:>6}{:>14.0f}{:>10.0f}{:>10.0f}  {}\n", card.name, gib_of(card.memory),
                        card.device.compute_capability / 10.0, card.device.sm_count, card.bf16_flops / 1e12,
                        card.memory_bandwidth / 1e9, card.link_bandwidth / 1e9, fmt::join(card.aliases, ", "));
  }
  return text;
}

}  // namespace

void add_gpus(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<GpusFlags>();
  command.add_option("CARD", flags->name, "Show only this card");
  command.add_flag("--json", flags->json, "Print a JSON list");
  command.callback([flags, &exit_code] {
    const std::vector<Card> cards = wanted_cards(flags->name);
    write_file("-", flags->json ? cards_json(cards) : cards_table(cards));
    exit_code = 0;
  });
}

}  // namespace vramfit
