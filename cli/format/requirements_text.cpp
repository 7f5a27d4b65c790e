#include "cli/format/requirements_text.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/format/estimate_text.h"
#include "cli/format/wrap.h"
#include "estimator/estimate_json.h"
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

/// A line for each number of cards, with those of which so many hold the job.
std::string counts_text(const std::map<std::int64_t, std::vector<std::string>>& by_count) {
  std::string text;
  for (const auto& [cards, names] : by_count) {
    text += names_line(fmt::format("  {:>3} {}", cards, cards == 1 ? "card" : "cards"), names);
  }
  return text;
}

/// Under each reason, without the advice after it, the cards that it is about, in the order in which they come.
std::string reasons_text(const CardRequirements& requirements, CardAnswer answer, const char* heading) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const CardRequirement& row : requirements.cards) {
    if (row.answer != answer) continue;
    const std::string why = row.why.substr(0, row.why.find("; "));
    auto known = std::ranges::find(by_reason, why, [](const auto& each) { return each.first; });
    if (known == by_reason.end()) known = by_reason.insert(by_reason.end(), {why, {}});
    known->second.push_back(row.card->name);
  }
  std::string text;
  for (const auto& [why, names] : by_reason) {
    const std::vector<std::string> lines =
        wrapped(fmt::format("{}: {}", heading, printable(why, 500)), static_cast<std::size_t>(terminal_width()));
    text += fmt::format("{}\n", fmt::join(lines, "\n  ")) + names_line("", names);
  }
  return text;
}

std::string cards_text(const CardRequirements& requirements) {
  std::map<std::int64_t, std::vector<std::string>> by_count, by_count_changed;
  std::vector<std::string> too_small;
  for (const CardRequirement& row : requirements.cards) {
    if (row.answer == CardAnswer::holds) {
      by_count[row.fewest.cards].push_back(row.card->name);
    } else if (row.fewest_changed.cards > 0) {
      by_count_changed[row.fewest_changed.cards].push_back(row.card->name);
    } else if (row.answer == CardAnswer::does_not) {
      too_small.push_back(row.card->name);
    }
  }
  std::string text = "\n";
  if (!by_count.empty()) text += "Cards that hold it (1, 2, 4, ... of them)\n" + counts_text(by_count);
  if (!by_count_changed.empty()) {
    text += fmt::format("Cards that hold it with {}\n", requirements.change) + counts_text(by_count_changed);
  }
  if (!too_small.empty()) {
    const std::string changed =
        requirements.change.empty() ? "" : fmt::format(", as it is or with {}", requirements.change);
    text += fmt::format("Not on {} or fewer{}\n", kMostCards, changed) + names_line("", too_small);
  }
  text += reasons_text(requirements, CardAnswer::lacks_rules, "No rules");
  return text + reasons_text(requirements, CardAnswer::cannot_run, "Not at all");
}

/// Why there is no answer for a card, with its name.
std::string reason_for(const CardRequirement& row) {
  std::string text = row.why.substr(0, row.why.find("; "));  // what follows would answer for another card
  const std::string_view name = kSuchACard;
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + row.card->name.size())) {
    text.replace(at, name.size(), row.card->name);
  }
  return text;
}

void write_fewest(JsonWriter& writer, const FewestCards& fewest) {
  writer.member("cards", fewest.cards).member("gpus", fewest.cluster);
  writer.member("total_bytes", fewest.total).member("upper_bound_bytes", fewest.upper_bound);
}

/// The smallest number of the most common sort of training card is a good place to go on.
std::string next_command(const CardRequirements& requirements, const std::string& model) {
  for (const CardRequirement& row : requirements.cards) {
    if (row.card->name != kOneCard || row.fewest.cluster.empty()) continue;
    const Confidence confidence = requirements.one_card.cluster.confidence;
    return fmt::format("\nNext: vramfit estimate {} --gpus {}{}\n", printable(model), row.fewest.cluster,
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
    const bool is_modelled = row.answer == CardAnswer::holds || row.answer == CardAnswer::does_not;
    writer.begin_object().member("card", row.card->name).member("capacity_bytes", row.card->memory);
    writer.member("modelled", is_modelled)
        .member("why", is_modelled ? std::nullopt : std::optional(reason_for(row)))
        .member("fits", row.answer == CardAnswer::holds);
    write_fewest(writer, row.fewest);
    writer.key("changed");
    if (row.fewest_changed.cards > 0) {
      write_fewest(writer.begin_object().member("change", requirements.change), row.fewest_changed);
      writer.end_object();
    } else {
      writer.null();
    }
    writer.end_object();
  }
  writer.end_array().end_object();
  return writer.take();
}

}  // namespace vramfit
