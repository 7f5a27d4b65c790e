#include <cmath>

#include <fmt/format.h>

#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/compare/compare.h"
#include "estimator/estimate_json.h"
#include "program/files/rank_json.h"

namespace vramfit {
namespace {

std::string error_text(const ComparedLine& line) {
  if (!line.predicted) return "not predicted";
  if (!std::isfinite(line.error())) return "not measured";
  return fmt::format("{:+.2f} %", 100 * line.error());
}

std::string mib(const std::optional<Bytes>& bytes) {
  return bytes ? fmt::format("{:.2f}", static_cast<double>(bytes->n) / static_cast<double>(kMiB.n)) : "-";
}

std::string row(const ComparedLine& line) {
  return fmt::format("  {:<24}{:>14}{:>14}{:>14}\n", line.name, mib(line.predicted), mib(line.measured),
                     error_text(line));
}

void write_lines(JsonWriter& writer, std::string_view name, const std::vector<ComparedLine>& lines) {
  writer.key(name).begin_array();
  for (const ComparedLine& line : lines) {
    writer.begin_object().member("name", line.name);
    for (const auto& [key, bytes] : {std::pair{"predicted_bytes", line.predicted}, {"measured_bytes", line.measured}}) {
      writer.member(key, bytes);
    }
    writer.member("error", line.error()).end_object();
  }
  writer.end_array();
}

void write_events(JsonWriter& writer, const std::vector<ComparedEvents>& events) {
  writer.key("events").begin_array();
  for (const ComparedEvents& rank : events) {
    writer.begin_object().member("rank", rank.rank).member("compared", rank.compared);
    writer.member("first_difference", rank.first_difference).end_object();
  }
  writer.end_array();
}

std::string program_text(const std::vector<std::string>& differences) {
  std::string text;
  for (const std::string& difference : differences) text += fmt::format("  {}\n", difference);
  return text.empty() ? text : "\n  The run's program is not the planned one (their fingerprints differ)\n" + text;
}

std::string events_text(const Comparison& comparison) {
  if (comparison.events.empty() && !comparison.within() && !comparison.rehearsed) {
    return "\nTo see the first allocation that differs: vramfit run PLAN --steps 2 --events DIR, then vramfit compare "
           "PLAN "
           "RUN --events DIR\n";
  }
  std::string text = comparison.events.empty() ? "" : "\n  Allocations, one by one\n";
  for (const ComparedEvents& rank : comparison.events) {
    text += fmt::format("  rank {}: {}\n", rank.rank,
                        rank.first_difference.empty()
                            ? fmt::format("all {} are as predicted", rank.compared)
                            : fmt::format("after {} as predicted, {}", rank.compared, rank.first_difference));
  }
  return text;
}

}  // namespace

std::string comparison_to_json(const Comparison& comparison) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/comparison@1");
  writer.key("model").begin_object().member("name", comparison.model_name).end_object();
  writer.member("tolerance", comparison.tolerance).member("within", comparison.within());
  writer.key("error").begin_object();
  writer.member("requested", comparison.requested.error()).member("allocated", comparison.allocated.error());
  writer.member("reserved", comparison.reserved.error()).end_object();
  write_lines(writer, "peaks", {comparison.requested, comparison.allocated, comparison.reserved});
  write_lines(writer, "phases", comparison.phases);
  write_lines(writer, "categories", comparison.categories);
  write_events(writer, comparison.events);
  writer.member("program_differences", comparison.program_differences);
  write_ranks(writer, comparison.ranks, comparison.worst);
  writer.end_object();
  return writer.take();
}

std::string comparison_text(const Comparison& comparison) {
  const bool phantom = comparison.rehearsed;
  std::string text =
      fmt::format("{}: peak allocated {}, reserved {} (tolerance {:.2f} %)\n{}, worst rank{}, MiB\n\n",
                  comparison.within() ? "WITHIN TOLERANCE" : "OUTSIDE TOLERANCE", error_text(comparison.allocated),
                  error_text(comparison.reserved), 100 * comparison.tolerance, printable(comparison.model_name),
                  phantom ? ", rehearsed on phantom GPUs, not measured on a card" : "");
  text += fmt::format("  {:<24}{:>14}{:>14}{:>14}\n", "", "predicted", phantom ? "rehearsed" : "measured", "error");
  for (const ComparedLine* line : {&comparison.requested, &comparison.allocated, &comparison.reserved})
    text += row(*line);
  text += "\n  Peak by phase\n";
  for (const ComparedLine& line : comparison.phases) text += row(line);
  text += "\n  At the peak\n";
  for (const ComparedLine& line : comparison.categories) {
    if (line.predicted->n > 0 || line.measured->n > 0) text += row(line);
  }
  return text + program_text(comparison.program_differences) + events_text(comparison);
}

}  // namespace vramfit
