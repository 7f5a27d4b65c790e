#include "estimator/estimate_json.h"

#include "estimator/at_peak.h"
#include "estimator/changes/what_if.h"
#include "estimator/run_effect_text.h"
#include "job/fields/job_json.h"
#include "program/files/rank_json.h"

namespace vramfit {
namespace {

void write_suggestions(JsonWriter& writer, const std::vector<Suggestion>& suggestions) {
  writer.key("suggestions").begin_array();
  for (const Suggestion& suggestion : suggestions) {
    writer.begin_object().member("change", suggestion.change).member("total_bytes", suggestion.total_after);
    writer.member("saved_bytes", suggestion.saved).member("fits", suggestion.verdict == Verdict::fits).end_object();
  }
  writer.end_array();
}

void write_others(JsonWriter& writer, const std::vector<StackNeed>& others) {
  writer.key("other_stacks").begin_array();
  for (const StackNeed& other : others) {
    if (other.verdict == Verdict::not_modelled) continue;
    writer.begin_object().member("stack", other.stack).member("total_bytes", other.total);
    writer.member("flags", other.answered_by);
    writer.member("verdict", verdict_name(other.verdict)).end_object();
  }
  writer.end_array();
}

void write_at_peak(JsonWriter& writer, const AtPeak& at_peak) {
  writer.begin_object().member("phase", phase_name(at_peak.phase)).member("step", at_peak.step);
  writer.member("requested_bytes", at_peak.requested).member("tensors", at_peak.tensors);
  writer.key("modules").begin_array();
  for (const HeldModule& module : at_peak.modules) {
    writer.begin_object().member("name", module.name).member("depth", module.depth);
    writer.member("bytes", module.bytes).member("tensors", module.tensors).end_object();
  }
  writer.end_array().key("largest").begin_array();
  for (const HeldTensors& held : at_peak.largest) {
    writer.begin_object().member("name", held.name).member("category", category_name(held.category));
    writer.member("bytes", held.bytes).member("count", held.count).end_object();
  }
  writer.end_array().end_object();
}

}  // namespace

void write_run_effects(JsonWriter& writer, const RunEffects& run) {
  writer.member("clip", run.clip).member("save_kind", save_kind_of(run));
}

void write_speed(JsonWriter& writer, const Speed& speed, const std::vector<Figure>& figures) {
  writer.begin_object();
  writer.member("step_seconds", speed.time.step_seconds);
  writer.member("least_step_seconds", speed.least_step_seconds).member("most_step_seconds", speed.most_step_seconds);
  writer.member("compute_seconds", speed.time.compute_seconds);
  writer.member("communication_seconds", speed.time.communication_seconds);
  writer.member("exposed_communication_seconds", speed.exposed_communication_seconds);
  writer.member("exposed_copy_seconds", speed.exposed_copy_seconds);
  writer.member("exposed_host_seconds", speed.exposed_host_seconds);
  writer.member("tokens_per_second", speed.tokens_per_second);
  writer.member("tokens_per_second_per_card", speed.tokens_per_second_per_card);
  writer.member("model_flops_utilization", speed.model_flops_utilization);
  writer.key("figures").begin_array();
  for (const Figure& figure : figures) {
    writer.begin_object().member("name", figure.name).member("value", figure.value);
    writer.member("origin", figure.origin).end_object();
  }
  writer.end_array().end_object();
}

void write_bound(JsonWriter& writer, const Margins& margins) {
  writer.key("bound").begin_object().member("confidence", margins.confidence.per_ten_thousand / 1e4);
  writer.member("reserved_margin", static_cast<double>(margins.reserved_per_million) / 1e6);
  writer.member("outside_margin_bytes", margins.outside).key("cases").begin_array();
  for (std::size_t i = 0; i < kResidualKinds; ++i) {
    const Seen& seen = margins.seen[i];
    if (seen.cases == 0) continue;
    writer.begin_object().member("kind", residual_kind_name(static_cast<ResidualKind>(i)));
    writer.member("of_runtime", seen.of_runtime).member("cases", seen.cases).member("within", seen.within).end_object();
  }
  writer.end_array().end_object();
}

void write_estimate_members(JsonWriter& writer, const Estimate& estimate) {
  writer.member("stack", estimate.stack);
  writer.key("model").begin_object();
  writer.member("name", estimate.model_name).member("parameters", estimate.parameters).end_object();
  write_job(writer.key("job"), estimate.job);
  write_cluster(writer.key("cluster"), estimate.cluster);
  writer.member("verdict", verdict_name(estimate.verdict)).member("fits", estimate.verdict == Verdict::fits);
  writer.member("why", estimate.why);
  writer.member("capacity_bytes", estimate.capacity).member("host_bytes", estimate.host_bytes);
  write_suggestions(writer, estimate.suggestions);
  writer.member("assumptions", estimate.assumptions);
  if (estimate.margins) write_bound(writer, *estimate.margins);
  write_ranks(writer, estimate.ranks, estimate.worst);
}

std::string estimate_to_json(const Estimate& estimate, const EstimateExtras& extras) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/estimate@1");
  write_estimate_members(writer, estimate);
  write_run_effects(writer, estimate.run);
  if (estimate.speed) write_speed(writer.key("speed"), *estimate.speed, estimate.figures);
  write_others(writer, estimate.others);
  if (!extras.what_ifs.empty()) write_what_ifs(writer, estimate, extras.what_ifs);
  if (extras.at_peak != nullptr) write_at_peak(writer.key("at_peak"), *extras.at_peak);
  writer.end_object();
  return writer.take();
}

}  // namespace vramfit
