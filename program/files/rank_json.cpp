#include "program/files/rank_json.h"

#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/most_bytes.h"
#include "base/text/suggest.h"
#include "job/sharding/mesh.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostRanks = std::int64_t{1} << 40;
constexpr std::size_t kMostEntries = 1U << 20;

void write_breakdown(JsonWriter& writer, const Breakdown& breakdown) {
  const std::array<Bytes, kBreakdownParts> parts = breakdown_parts(breakdown);
  writer.key("breakdown").begin_object();
  for (std::size_t i = 0; i < kBreakdownParts; ++i) writer.member(breakdown_part_name(i), parts[i]);
  writer.end_object();
}

Breakdown read_breakdown(JsonObject object) {
  std::array<Bytes, kBreakdownParts> parts{};
  for (std::size_t i = 0; i < kBreakdownParts; ++i) {
    parts[i] = {object.integer(breakdown_part_name(i), 0, kMostStatedBytes)};
  }
  object.finish();
  return breakdown_of(parts);
}

void write_phases(JsonWriter& writer, const std::vector<PhasePeak>& phases) {
  writer.key("phases").begin_array();
  for (const PhasePeak& peak : phases) {
    writer.begin_object().member("phase", phase_name(peak.phase)).member("step", peak.steady ? "steady" : "first");
    writer.member("peak_requested_bytes", peak.requested).member("peak_allocated_bytes", peak.allocated);
    writer.member("peak_reserved_bytes", peak.reserved);
    if (peak.host.n > 0) writer.member("host_bytes", peak.host);
    writer.end_object();
  }
  writer.end_array();
}

PhasePeak read_phase(JsonObject& object) {
  PhasePeak peak;
  const std::string name = object.text("phase");
  std::vector<std::string> known;
  for (int i = 0; i < kPhases; ++i) {
    known.emplace_back(phase_name(static_cast<Phase>(i)));
    if (known.back() == name) peak.phase = static_cast<Phase>(i);
  }
  if (phase_name(peak.phase) != name) {
    object.fail("phase", fmt::format("unknown value \"{}\"{}", printable(name), did_you_mean(name, known)));
  }
  const std::string step = object.text("step");
  if (step != "first" && step != "steady") object.fail("step", R"(is neither "first" nor "steady")");
  peak.steady = step == "steady";
  peak.requested = {object.integer("peak_requested_bytes", 0, kMostStatedBytes)};
  peak.allocated = {object.integer("peak_allocated_bytes", 0, kMostStatedBytes)};
  peak.reserved = {object.integer("peak_reserved_bytes", 0, kMostStatedBytes)};
  if (object.has("host_bytes")) peak.host = {object.integer("host_bytes", 0, kMostStatedBytes)};
  object.finish();
  return peak;
}

}  // namespace

void write_rank_members(JsonWriter& writer, const RankEstimate& rank) {
  writer.key("ranks").begin_array().integer(rank.first_rank).integer(rank.last_rank).end_array();
  writer.key("coords").begin_object();
  for (const MeshAxis& axis : kMeshAxes) writer.member(axis.name, rank.coords.*axis.place);
  writer.end_object();
  writer.member("peak_requested_bytes", rank.peak_requested).member("peak_allocated_bytes", rank.peak_allocated);
  writer.member("peak_reserved_bytes", rank.peak_reserved).member("total_bytes", rank.total);
  writer.member("upper_bound_bytes", rank.upper_bound).member("alloc_retries", rank.alloc_retries);
  if (rank.managed.n > 0) writer.member("managed_bytes", rank.managed);
  write_breakdown(writer, rank.breakdown);
  write_phases(writer, rank.phases);
}

void write_ranks(JsonWriter& writer, const std::vector<RankEstimate>& ranks, int worst) {
  writer.key("ranks").begin_array();
  for (const RankEstimate& rank : ranks) {
    writer.begin_object();
    write_rank_members(writer, rank);
    writer.end_object();
  }
  writer.end_array().member("worst", worst);
}

RankEstimate read_rank(JsonObject& object) {
  RankEstimate rank;
  const std::vector<std::int64_t> range = object.integers("ranks", 0, kMostRanks);
  if (range.size() != 2 || range[0] > range[1]) object.fail("ranks", "is not [first, last]");
  rank.first_rank = range[0];
  rank.last_rank = range[1];
  JsonObject coords = object.object("coords");
  for (const MeshAxis& axis : kMeshAxes) rank.coords.*axis.place = coords.integer(axis.name, 0, kMostRanks);
  coords.finish();
  rank.peak_requested = {object.integer("peak_requested_bytes", 0, kMostStatedBytes)};
  rank.peak_allocated = {object.integer("peak_allocated_bytes", 0, kMostStatedBytes)};
  rank.peak_reserved = {object.integer("peak_reserved_bytes", 0, kMostStatedBytes)};
  rank.total = {object.integer("total_bytes", 0, kMostStatedBytes)};
  rank.upper_bound = {object.integer("upper_bound_bytes", 0, kMostStatedBytes)};
  rank.alloc_retries = object.integer("alloc_retries", 0, kMostStatedBytes);
  if (object.has("managed_bytes")) rank.managed = {object.integer("managed_bytes", 0, kMostStatedBytes)};
  rank.gives_back = rank.alloc_retries > 0;
  rank.breakdown = read_breakdown(object.object("breakdown"));
  for (JsonObject& phase : object.objects("phases")) rank.phases.push_back(read_phase(phase));
  return rank;
}

std::vector<RankEstimate> read_ranks(JsonObject& object, int& worst) {
  std::vector<JsonObject> entries = object.objects("ranks");
  if (entries.empty() || entries.size() > kMostEntries) object.fail("ranks", "has no entries, or too many");
  std::vector<RankEstimate> ranks;
  for (JsonObject& entry : entries) {
    ranks.push_back(read_rank(entry));
    entry.finish();
  }
  worst = static_cast<int>(object.integer("worst", 0, static_cast<std::int64_t>(ranks.size()) - 1));
  return ranks;
}

}  // namespace vramfit
