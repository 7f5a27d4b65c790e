#include "cli/format/requirements_text.h"

#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json_writer.h"
#include "base/suggest.h"
#include "cli/format/estimate_text.h"
#include "cli/format/wrap.h"
#include "estimator/estimate_json.h"
#include "job/cluster/precision_support.h"
#include "job/fields/job_json.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

constexpr std::size_t kIndent = 13;

/// "  2 cards    H200-141GB, H100-NVL-94GB", in as many lines as it takes.
std::string names_line(const std::string& first, const std::vector<std::string>& names) {
  std::string text;
  const auto width = static_cast<std::size_t>(terminal_width()) - kIndent;
  for (const std::string& line : wrapped(fmt::format("{}", fmt::join(names, ", ")), width)) {
    text += fmt::format("{:<{}}{}\n", text.empty() ? first : "", kIndent, line);
  }
  return text;
}

std::string cards_text(const CardRequirements& requirements) {
  std::map<std::int64_t, std::vector<std::string>> by_count;
  std::vector<std::string> without_kernels, without_rules;
  const bool is_own = requirements.one_card.job.runtime == Runtime::vramfit;  // a script brings its own PyTorch
  for (const CardRequirement& row : requirements.cards) {
    const bool can_run = !is_own || torch_has_kernels(row.card->device.compute_capability);
    (!can_run ? without_kernels : !row.is_modelled ? without_rules : by_count[row.cards]).push_back(row.card->name);
  }
  std::string text = "\nCards that hold it (1, 2, 4, ... of them)\n";
  for (const auto& [cards, names] : by_count) {
    if (cards > 0) text += names_line(fmt::format("  {:>3} {}", cards, cards == 1 ? "card" : "cards"), names);
  }
  if (const auto none = by_count.find(0); none != by_count.end()) {
    text += fmt::format("Not on {} or fewer as it is; {} less\n", kMostCards,
                        is_own ? "--checkpointing full and --loss chunked:8 take" : "--checkpointing full takes");
    text += names_line("", none->second);
  }
  if (!without_rules.empty()) text += "No rules for these\n" + names_line("", without_rules);
  if (!without_kernels.empty()) {
    text += fmt::format("Not at all: PyTorch {} has no kernels for these\n", kTorchVersion);
    text += names_line("", without_kernels);
  }
  return text;
}

/// The smallest number of the most common sort of training card is a good place to go on.
std::string next_command(const CardRequirements& requirements, const std::string& model) {
  for (const CardRequirement& row : requirements.cards) {
    if (row.card->name != kOneCard || row.cluster.empty()) continue;
    const Confidence confidence = requirements.one_card.cluster.confidence;
    return fmt::format("\nNext: vramfit estimate {} --gpus {}{}\n", printable(model), row.cluster,
                       confidence.is_asked() ? " --confidence " + confidence_text(confidence) : "");
  }
  return "";
}

}  // namespace

std::string requirements_text(const CardRequirements& requirements, const std::string& model,
                              const Terminal& terminal) {
  const Estimate& one = requirements.one_card;
  const std::string cluster =
      one.cluster.cards() == 1 ? std::string("one card") : fmt::format("{} cards, each", one.cluster.cards());
  const char* const more = worst_rank(one).reserved_grows ? " and more with every step," : "";
  std::string text =
      fmt::format("{}: {}{} on {} with {} ({} without a limit)\n", styled(terminal, Style::bold, "NEEDS"),
                  format_gib(worst_rank(one).total), more, cluster, stack_named(one.stack).what, kOneCard);
  text += fmt::format("{}, {} parameters; no --gpus given\n", printable(one.model_name), short_count(one.parameters));
  text += fmt::format("\n{}{}", breakdown_table(worst_rank(one), terminal, false), cards_text(requirements));
  text += "\n" + job_line(one) + "Assumptions:\n";
  for (const std::string& assumption : one.assumptions) text += fmt::format("  - {}\n", printable(assumption, 500));
  return text + next_command(requirements, model);
}

std::string requirements_to_json(const CardRequirements& requirements) {
  const Estimate& one = requirements.one_card;
  const RankEstimate& worst = worst_rank(one);
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/requirements@1");
  writer.key("model").begin_object().member("name", one.model_name).member("parameters", one.parameters).end_object();
  writer.member("stack", one.stack);
  writer.key("one_card").begin_object().member("card", kOneCard).member("cards", one.cluster.cards());
  writer.member("total_bytes", worst.total);
  writer.member("upper_bound_bytes", worst.reserved_grows ? std::nullopt : std::optional(worst.upper_bound));
  if (one.margins) write_bound(writer, *one.margins);
  writer.end_object();
  write_job(writer.key("job"), one.job);
  write_run_effects(writer, one.run);
  writer.member("assumptions", one.assumptions);
  writer.key("cards").begin_array();
  for (const CardRequirement& row : requirements.cards) {
    writer.begin_object().member("card", row.card->name).member("capacity_bytes", row.card->memory);
    writer.member("modelled", row.is_modelled)
        .member("fits", row.cards > 0)
        .member("cards", row.cards)
        .member("gpus", row.cluster);
    writer.member("total_bytes", row.total).member("upper_bound_bytes", row.upper_bound).end_object();
  }
  writer.end_array().end_object();
  return writer.take();
}

}  // namespace vramfit
