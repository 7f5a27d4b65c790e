#include "base/json/json_writer.h"
#include "cli/rehearse/rehearsal.h"
#include "cli/rehearse/report/assumptions.h"
#include "job/fields/job_json.h"

namespace vramfit {
namespace {

void write_phases(JsonWriter& writer, const std::vector<TorchPhase>& phases) {
  writer.key("phases").begin_array();
  for (const TorchPhase& phase : phases) {
    writer.begin_object().member("phase", phase.phase).member("step", phase.step);
    writer.member("peak_requested_bytes", phase.requested).member("peak_allocated_bytes", phase.allocated);
    writer.member("peak_reserved_bytes", phase.reserved).end_object();
  }
  writer.end_array();
}

void write_sizes(JsonWriter& writer, std::string_view name, const std::vector<std::int64_t>& sizes) {
  writer.key(name).begin_array();
  for (const std::int64_t size : sizes) writer.integer(size);
  writer.end_array();
}

void write_failures(JsonWriter& writer, const std::vector<TorchOutOfMemory>& failures) {
  writer.key("out_of_memory").begin_array();
  for (const TorchOutOfMemory& event : failures) {
    writer.begin_object().member("phase", event.phase).member("step", event.step);
    writer.member("asked_bytes", event.asked).member("free_bytes", event.free);
    writer.member("allocated_bytes", event.allocated).member("reserved_bytes", event.reserved);
    write_sizes(writer, "inputs", event.inputs);
    writer.key("live").begin_array();
    for (const auto& [what, bytes] : event.live)
      writer.begin_object().member("what", what).member("bytes", bytes).end_object();
    writer.end_array().key("blocks").begin_array();
    for (const auto& [bytes, count] : event.block_sizes) {
      writer.begin_object().member("bytes", bytes).member("count", count).end_object();
    }
    writer.end_array().end_object();
  }
  writer.end_array();
}

void write_rank(JsonWriter& writer, const RehearsedRank& rank) {
  writer.begin_object().key("ranks").begin_array().integer(rank.first).integer(rank.last).end_array();
  writer.member("card", rank.card).member("source", rank.by_torch ? "torch" : "driver");
  writer.member("peak_requested_bytes", rank.requested).member("peak_allocated_bytes", rank.allocated);
  writer.member("peak_reserved_bytes", rank.reserved).member("total_bytes", rank.total);
  writer.member("upper_bound_bytes", rank.upper_bound)
      .member("managed_bytes", rank.managed)
      .member("workspaces_bytes", rank.workspaces)
      .member("alloc_retries", rank.retries);
  writer.key("breakdown").begin_object().member("allocated", rank.allocated);
  writer.member("fragmentation", rank.reserved - rank.allocated).member("outside_allocator", rank.outside).end_object();
  write_phases(writer, rank.phases);
  writer.member("steps", rank.steps).member("pinned_bytes", rank.pinned);
  writer.member("out_of_memory_count", rank.out_of_memory);
  write_failures(writer, rank.failures);
  write_sizes(writer, "worked_inputs", rank.worked_inputs);
  writer.end_object();
}

void write_assumed(JsonWriter& writer, const std::vector<AssumedRead>& reads) {
  writer.key("assumed_reads").begin_array();
  for (const AssumedRead& read : reads) {
    writer.begin_object().member("what", read.what).member("steers", read.steers).member("at_risk", is_risky(read));
    writer.member("assumptions", assumption_names(read.assumptions));
    writer.member("count", read.count).member("bytes", read.bytes).end_object();
  }
  writer.end_array();
}

void write_values(JsonWriter& writer, const Rehearsal& rehearsal) {
  const CountedReads uncertain = rehearsal.uncertain_reads(), invented = rehearsal.invented_reads();
  const std::vector<AssumedRead> assumed = merged_reads(rehearsal.processes);
  const bool is_certain = uncertain.count == 0 && invented.count == 0 && assumed.empty();
  writer.key("values").begin_object().member("certain", is_certain);
  writer.member("uncertain_reads", uncertain.count).member("uncertain_bytes", uncertain.bytes);
  writer.member("places", uncertain.places);
  writer.member("invented_reads", invented.count).member("invented_bytes", invented.bytes);
  writer.member("invented_places", invented.places);
  write_assumed(writer, assumed);
  writer.end_object();
}

void write_workspaces(JsonWriter& writer, const std::vector<UnknownWorkspace>& workspaces) {
  writer.key("workspaces").begin_array();
  for (const UnknownWorkspace& each : workspaces) {
    writer.begin_object().member("what", each.what).member("count", each.count).member("at_most_bytes", each.most);
    writer.member("has_bound", each.has_bound).member("kept", each.is_kept).end_object();
  }
  writer.end_array();
}

void write_processes(JsonWriter& writer, const Rehearsal& rehearsal) {
  writer.key("processes").begin_array();
  for (const ProcessRecord& process : rehearsal.processes) {
    writer.begin_object().member("process", process.process);
    writer.member("rank", process.rank);
    writer.member("command", process.command).member("ended", process.ended);
    writer.member("torch", process.torch ? process.torch->version : "");
    writer.member("exception", process.torch ? process.torch->exception : "");
    writer.member("ghost_answers", process.ghost_answers).member("ghost_places", process.ghost_places);
    writer.member("escapes", process.escapes).key("unsupported").begin_array();
    for (const auto& [function, calls] : process.unsupported) {
      writer.begin_object().member("function", function).member("calls", calls).end_object();
    }
    writer.end_array();
    write_workspaces(writer, process.workspaces);
    writer.end_object();
  }
  writer.end_array();
}

}  // namespace

std::string rehearsal_to_json(const Rehearsal& rehearsal) {
  const CommandEnd& end = rehearsal.end;
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/rehearsal@1").member("rehearsed", true);
  writer.member("verdict", verdict_name(rehearsal.verdict));
  writer.member("fits", rehearsal.verdict == RehearsalVerdict::fits).member("why", rehearsal.why);
  writer.member("capacity_bytes", rehearsal.cluster.card.memory);
  writer.member("command", rehearsal.command);
  write_cluster(writer.key("cluster"), rehearsal.cluster);
  writer.member("played_rank", rehearsal.played_rank);
  if (!rehearsal.played_ranks.empty()) write_sizes(writer, "played_ranks", rehearsal.played_ranks);
  writer.member("exit_code", end.exit_code).member("exit_signal", end.exit_signal);
  writer.member("seconds", end.seconds);
  writer.key("ranks").begin_array();
  for (const RehearsedRank& rank : rehearsal.ranks) write_rank(writer, rank);
  writer.end_array().member("worst", rehearsal.worst);
  write_values(writer, rehearsal);
  writer.key("ghosts").begin_object().member("store_answers", rehearsal.ghosts.answers);
  writer.member("store_keys", rehearsal.ghosts.keys).member("never_set_keys", rehearsal.ghosts.never_set_keys);
  writer.member("refused", rehearsal.ghosts.refused).end_object();
  write_processes(writer, rehearsal);
  writer.member("notes", rehearsal.notes).end_object();
  return writer.take();
}

}  // namespace vramfit
