#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/explain/explanation.h"
#include "estimator/estimate_json.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostLines = 100;

void write_place(JsonWriter& writer, const char* name, const std::optional<CodePlace>& place) {
  writer.key(name);
  if (!place) {
    writer.null();
    return;
  }
  writer.begin_object().member("file", printable(place->file, 300)).member("line", place->line);
  writer.member("function", printable(place->function, 300)).end_object();
}

void write_site(JsonWriter& writer, const CodeSite& site) {
  writer.key("where").begin_object();
  writer.member("phase", site.phase ? std::optional(phase_name(*site.phase)) : std::nullopt);
  writer.member("recomputes", site.recomputes);
  write_place(writer, "own", site.own);
  write_place(writer, "library", site.library);
  write_place(writer, "innermost", site.innermost);
  writer.end_object();
}

std::string_view refused_name(RefusedBy by) {
  switch (by) {
    case RefusedBy::caching_allocator:
      return "caching_allocator";
    case RefusedBy::async_allocator:
      return "async_allocator";
    case RefusedBy::memory_fraction:
      return "memory_fraction";
    case RefusedBy::library:
      return "library";
  }
  return "";
}

void write_use(JsonWriter& writer, const CardUse& use) {
  writer.key("card").begin_object();
  writer.member("asked_bytes", use.asked);
  writer.member("total_bytes", use.total);
  writer.member("free_bytes", use.free);
  writer.member("limit_bytes", use.limit);
  writer.member("allocated_bytes", use.allocated);
  writer.member("unallocated_bytes", use.unallocated);
  writer.member("private_pool_bytes", use.private_pools);
  writer.member("own_outside_bytes", use.own_outside);
  writer.member("other_processes_bytes", use.others);
  writer.member("untold_bytes", use.rest);
  writer.member("lacking_bytes", use.lacking());
  writer.end_object();
}

void write_failure(JsonWriter& writer, const LoggedFailure& failure) {
  writer.begin_object().member("line", failure.line);
  for (const auto& [name, value] : {std::pair{"rank", failure.rank}, {"gpu", failure.message.gpu}}) {
    writer.member(name, value);
  }
  writer.member("refused_by", refused_name(failure.message.by));
  write_use(writer, use_of(failure.message));
  write_site(writer, failure.site);
  writer.member("message", failure.message.text).end_object();
}

void write_held(JsonWriter& writer, const HeldMemory& held) {
  writer.begin_object().member("requested_bytes", held.bytes).key("phases").begin_array();
  for (const HeldByPhase& part : held.phases) {
    writer.begin_object().member("phase", part.phase).member("bytes", part.bytes).end_object();
  }
  writer.end_array().key("lines").begin_array();
  for (std::size_t i = 0; i < std::min(held.lines.size(), kMostLines); ++i) {
    const HeldByLine& line = held.lines[i];
    writer.begin_object()
        .member("bytes", line.bytes)
        .member("blocks", line.blocks)
        .member("largest_bytes", line.largest);
    writer.member("phase", line.phase).member("unknown", line.why_unknown);
    write_place(writer, "place", line.place);
    write_place(writer, "own", line.own);
    writer.end_object();
  }
  writer.end_array().end_object();
}

void write_device(JsonWriter& writer, const SnapshotFacts& facts) {
  writer.begin_object().member("gpu", facts.device).member("segments", facts.segments).member("blocks", facts.blocks);
  writer.member("reserved_bytes", facts.reserved).member("allocated_bytes", facts.allocated);
  writer.member("awaiting_free_bytes", facts.awaiting_free).member("unallocated_bytes", facts.unallocated);
  writer.member("largest_free_bytes", facts.largest_free).member("stuck_bytes", facts.stuck);
  writer.member("private_pool_bytes", facts.private_pools).member("expandable_segments", facts.expandable);
  write_held(writer.key("held"), facts.held);
  if (facts.peak) {
    writer.key("peak").begin_object().member("event", static_cast<std::int64_t>(facts.peak->event));
    writer.member("events", static_cast<std::int64_t>(facts.peak->events));
    writer.member("reserved_bytes", facts.peak->reserved).member("unmatched_events", facts.unmatched);
    write_held(writer.key("held"), facts.peak->held);
    writer.end_object();
  } else {
    writer.key("peak").null();
  }
  if (facts.oom) {
    writer.key("out_of_memory").begin_object().member("asked_bytes", facts.oom->asked);
    writer.member("free_bytes", facts.oom->free).end_object();
  } else {
    writer.key("out_of_memory").null();
  }
  writer.end_object();
}

void write_rows(JsonWriter& writer, const char* name, const std::vector<BesideRow>& rows) {
  writer.key(name).begin_array();
  for (const BesideRow& row : rows) {
    writer.begin_object().member("what", row.what);
    writer.member("measured_bytes", row.measured);
    writer.member("estimated_bytes", row.estimated);
    writer.end_object();
  }
  writer.end_array();
}

void write_snapshot(JsonWriter& writer, const Explanation& explanation) {
  writer.key("snapshot").begin_object().member("explained", static_cast<std::int64_t>(explanation.device));
  writer.key("devices").begin_array();
  for (const SnapshotFacts& facts : explanation.devices) write_device(writer, facts);
  writer.end_array().key("settings").begin_object();
  for (const auto& [name, value] : explanation.settings) writer.member(name, value);
  writer.end_object().end_object();
}

void write_log(JsonWriter& writer, const Explanation& explanation) {
  writer.key("log").begin_object().member("explained", static_cast<std::int64_t>(explanation.failure));
  writer.key("failures").begin_array();
  for (const LoggedFailure& failure : explanation.log.failures) write_failure(writer, failure);
  writer.end_array().member("more_failures", explanation.log.more).end_object();
}

}  // namespace

std::string explanation_to_json(const Explanation& explanation) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/explanation@1").member("file", printable(explanation.file, 4096));
  if (explanation.is_snapshot()) {
    write_snapshot(writer, explanation);
  } else {
    write_log(writer, explanation);
  }
  write_use(writer, explanation.use);
  write_site(writer, explanation.site);
  writer.key("advice").begin_array();
  for (const Advice& advice : explanation.advice) {
    writer.begin_object().member("what", advice.what).member("why", advice.why);
    writer.member("enough", advice.enough).end_object();
  }
  writer.end_array();
  if (explanation.beside) {
    writer.key("beside").begin_object();
    write_rows(writer, "rows", explanation.beside->rows);
    write_rows(writer, "kinds", explanation.beside->kinds);
    writer.member("findings", explanation.beside->findings);
    writer.key("estimate").begin_object();
    write_estimate_members(writer, explanation.beside->estimate);
    write_run_effects(writer, explanation.beside->estimate.run);
    writer.end_object().end_object();
  }
  writer.end_object();
  return writer.take();
}

}  // namespace vramfit
