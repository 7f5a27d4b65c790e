#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "cli/compare/compare.h"
#include "estimator/json/job_json.h"
#include "model_specs/error.h"
#include "model_specs/json_value.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 60;

Bytes bytes(JsonObject& object, std::string_view key) { return {object.integer(key, 0, kMost)}; }

/// A script's phases as far as hooks can tell: forward includes the loss, and "other" is unknown.
std::vector<Phase> phases_named(const std::string& name) {
  if (name == "load") return {Phase::load};
  if (name == "forward") return {Phase::forward, Phase::loss};
  if (name == "backward") return {Phase::backward};
  if (name == "optimizer") return {Phase::optimizer};
  return {};
}

void add_phase(RankEstimate& rank, JsonObject& phase) {
  const std::vector<Phase> phases = phases_named(phase.text("phase"));
  if (phases.empty()) return;
  rank.phases.push_back({.phase = phases.front(),
                         .steady = phase.text("step") == "steady",
                         .requested = bytes(phase, "peak_requested_bytes"),
                         .allocated = bytes(phase, "peak_allocated_bytes"),
                         .reserved = bytes(phase, "peak_reserved_bytes")});
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
  for (JsonObject& phase : object.objects("phases")) add_phase(rank, phase);
  return rank;
}

/// The largest that the plan predicts of a measured phase's parts.
std::optional<Bytes> predicted_of(const RankEstimate& predicted, const PhasePeak& was) {
  std::optional<Bytes> largest;
  for (const PhasePeak& said : predicted.phases) {
    const bool part = said.phase == was.phase || (was.phase == Phase::forward && said.phase == Phase::loss);
    if (part && said.steady == was.steady) largest = std::max(largest.value_or(Bytes{}), said.allocated);
  }
  return largest;
}

}  // namespace

bool is_rehearsal(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  const auto schema = std::ranges::find(document.keys, "schema");
  return schema != document.keys.end() &&
         document.items[static_cast<std::size_t>(schema - document.keys.begin())].text == "vramfit/rehearsal@1";
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
  for (JsonObject& rank : object.objects("ranks")) comparison.ranks.push_back(read_rehearsed(rank));
  comparison.worst =
      static_cast<int>(object.integer("worst", 0, static_cast<std::int64_t>(comparison.ranks.size()) - 1));
  const RankEstimate& predicted = plan.predicted_ranks.at(static_cast<std::size_t>(plan.predicted_worst));
  const RankEstimate& measured = comparison.ranks[static_cast<std::size_t>(comparison.worst)];
  comparison.requested = {"requested", predicted.peak_requested, measured.peak_requested};
  comparison.allocated = {"allocated", predicted.peak_allocated, measured.peak_allocated};
  comparison.reserved = {"reserved", predicted.peak_reserved, measured.peak_reserved};
  for (const PhasePeak& was : measured.phases) {
    if (const std::optional<Bytes> said = predicted_of(predicted, was)) {
      comparison.phases.push_back(
          {fmt::format("{}, {}", phase_name(was.phase), was.steady ? "steady" : "first"), *said, was.allocated});
    }
  }
  comparison.categories = {
      {"fragmentation", predicted.breakdown.fragmentation, measured.breakdown.fragmentation},
      {"outside_allocator", predicted.breakdown.outside_allocator, measured.breakdown.outside_allocator}};
  return comparison;
}

}  // namespace vramfit
