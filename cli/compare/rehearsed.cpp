#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/text/suggest.h"
#include "cli/compare/compare.h"
#include "job/fields/job_json.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 60;

Bytes bytes(JsonObject& object, std::string_view key) { return {object.integer(key, 0, kMost)}; }

/// A script's phases as far as hooks can tell: forward includes the loss, and "other" is unknown.
std::vector<Phase> phases_named(std::string_view name) {
  if (name == "load") return {Phase::load};
  if (name == "forward") return {Phase::forward, Phase::loss};
  if (name == "backward") return {Phase::backward};
  if (name == "optimizer") return {Phase::optimizer};
  return {};
}

struct RehearsedPhase {
  std::string name;
  bool steady = false;
  Bytes allocated;
};

std::vector<RehearsedPhase> read_phases(JsonObject& rank) {
  std::vector<RehearsedPhase> phases;
  for (JsonObject& phase : rank.objects("phases")) {
    phases.push_back({.name = printable(phase.text("phase"), 12),
                      .steady = phase.text("step") == "steady",
                      .allocated = bytes(phase, "peak_allocated_bytes")});
  }
  return phases;
}

RankEstimate read_rehearsed(JsonObject& object) {
  if (object.text("source") != "torch") object.fail("source", "only PyTorch's own statistics can be compared");
  RankEstimate rank;
  const std::vector<std::int64_t> range = object.integers("ranks", 0, kMost);
  if (range.size() != 2) object.fail("ranks", "is not [first, last]");
  rank.first_rank = range[0];
  rank.last_rank = range[1];
  rank.peak_requested = bytes(object, "peak_requested_bytes");
  rank.peak_allocated = bytes(object, "peak_allocated_bytes");
  rank.peak_reserved = bytes(object, "peak_reserved_bytes");
  rank.total = rank.upper_bound = bytes(object, "total_bytes");
  rank.alloc_retries = object.integer("alloc_retries", 0, kMost);
  JsonObject breakdown = object.object("breakdown");
  rank.breakdown.fragmentation = bytes(breakdown, "fragmentation");
  rank.breakdown.outside_allocator = bytes(breakdown, "outside_allocator");
  return rank;
}

bool is_part(const PhasePeak& said, const RehearsedPhase& was) {
  const std::vector<Phase> parts = phases_named(was.name);
  return said.steady == was.steady && std::ranges::find(parts, said.phase) != parts.end();
}

/// Rehearsed ones beside the largest that the plan predicts of their parts, then those that were only predicted.
std::vector<ComparedLine> compare_phases(const RankEstimate& predicted, const std::vector<RehearsedPhase>& rehearsed) {
  std::vector<ComparedLine> lines;
  for (const RehearsedPhase& was : rehearsed) {
    ComparedLine line{fmt::format("{}, {}", was.name, was.steady ? "steady" : "first"), std::nullopt, was.allocated};
    for (const PhasePeak& said : predicted.phases) {
      if (is_part(said, was)) line.predicted = std::max(line.predicted.value_or(Bytes{}), said.allocated);
    }
    lines.push_back(std::move(line));
  }
  for (const PhasePeak& said : predicted.phases) {
    const auto is_counted = [&](const RehearsedPhase& was) { return is_part(said, was); };
    if (std::ranges::none_of(rehearsed, is_counted)) lines.push_back({line_name(said), said.allocated, std::nullopt});
  }
  return lines;
}

}  // namespace

bool is_rehearsal(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  JsonObject object(document, file);
  return object.is_text("schema") && object.text("schema") == "vramfit/rehearsal@1";
}

Comparison compare_rehearsal(const PlanFile& plan, std::string_view text, const std::string& file, double tolerance) {
  const JsonValue document = parse_json(text, file);
  JsonObject object(document, file);
  check_schema(object, "rehearsal");
  JsonObject cluster = object.object("cluster");
  if (cluster.text("text") != plan.cluster.text) {
    throw InputError(fmt::format("the plan is for {}, the rehearsal was on {}", printable(plan.cluster.text),
                                 printable(cluster.text("text"))));
  }
  const std::string verdict = object.text("verdict");
  if (verdict != "fits" && verdict != "at_risk") {
    throw InputError(fmt::format("{}: {}: only a rehearsal that came to its end can be compared", printable(file),
                                 printable(verdict)));
  }
  Comparison comparison;
  comparison.model_name = plan.spec.name;
  comparison.rehearsed = true;
  comparison.tolerance = tolerance;
  std::vector<std::vector<RehearsedPhase>> phases;  // by entry of ranks
  for (JsonObject& rank : object.objects("ranks")) {
    comparison.ranks.push_back(read_rehearsed(rank));
    phases.push_back(read_phases(rank));
  }
  comparison.worst =
      static_cast<int>(object.integer("worst", 0, static_cast<std::int64_t>(comparison.ranks.size()) - 1));
  const RankEstimate& predicted = plan.predicted_ranks.at(static_cast<std::size_t>(plan.predicted_worst));
  const RankEstimate& measured = comparison.ranks[static_cast<std::size_t>(comparison.worst)];
  comparison.requested = {"requested", predicted.peak_requested, measured.peak_requested};
  comparison.allocated = {"allocated", predicted.peak_allocated, measured.peak_allocated};
  comparison.reserved = {"reserved", predicted.peak_reserved, measured.peak_reserved};
  comparison.phases = compare_phases(predicted, phases[static_cast<std::size_t>(comparison.worst)]);
  comparison.categories = {
      {"fragmentation", predicted.breakdown.fragmentation, measured.breakdown.fragmentation},
      {"outside_allocator", predicted.breakdown.outside_allocator, measured.breakdown.outside_allocator}};
  return comparison;
}

}  // namespace vramfit
