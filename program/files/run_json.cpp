#include <limits>

#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "job/fields/job_json.h"
#include "program/files/rank_json.h"
#include "program/files/run_record.h"

namespace vramfit {
namespace {

void write_reals(JsonWriter& writer, std::string_view name, const std::vector<double>& values) {
  writer.key(name).begin_array();
  for (const double value : values) writer.real(value);
  writer.end_array();
}

MeasuredRank read_measured_rank(JsonObject& object) {
  MeasuredRank rank;
  rank.memory = read_rank(object);
  if (object.has("pinned_bytes")) {  // older records lack it
    rank.pinned = {object.integer("pinned_bytes", 0, std::numeric_limits<std::int64_t>::max())};
  }
  if (object.has("host_bytes")) rank.host = {object.integer("host_bytes", 0, std::numeric_limits<std::int64_t>::max())};
  rank.arena = read_arena(object);
  rank.peak_rss = {object.integer("peak_rss_bytes", 0, std::numeric_limits<std::int64_t>::max())};
  object.finish();
  return rank;
}

void write_effects(JsonWriter& writer, const RunEffects& effects) {
  writer.key("effects").begin_object();
  writer.member("clip", effects.clip).member("resumes", effects.resumes);
  writer.member("saves", effects.saves).member("saves_full", effects.saves_full);
  writer.member("saves_adapters", effects.saves_adapters).end_object();
}

RunEffects read_effects(JsonObject object) {
  RunEffects effects{.clip = object.boolean("clip"),
                     .resumes = object.boolean("resumes"),
                     .saves = object.boolean("saves"),
                     .saves_full = object.boolean("saves_full")};
  if (object.has("saves_adapters")) effects.saves_adapters = object.boolean("saves_adapters");  // not in older records
  object.finish();
  return effects;
}

}  // namespace

void write_arena(JsonWriter& writer, const std::optional<MeasuredArena>& arena) {
  if (!arena) return;
  writer.key("arena").begin_object().member("bytes", arena->bytes).member("requests", arena->requests);
  writer.member("off_script", arena->off_script).member("first_off_script", arena->first_off_script).end_object();
}

std::optional<MeasuredArena> read_arena(JsonObject& rank) {
  if (!rank.has("arena")) return std::nullopt;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  JsonObject object = rank.object("arena");
  MeasuredArena arena;
  arena.bytes = {object.integer("bytes", 0, kMost)};
  arena.requests = object.integer("requests", 0, kMost);
  arena.off_script = object.integer("off_script", 0, kMost);
  arena.first_off_script = object.text("first_off_script");
  object.finish();
  return arena;
}

std::string run_to_json(const RunRecord& run) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/run@1");
  writer.key("model").begin_object();
  writer.member("name", run.model_name).member("parameters", run.parameters).end_object();
  write_job(writer.key("job"), run.job);
  write_cluster(writer.key("cluster"), run.cluster);
  if (run.effects) write_effects(writer, *run.effects);
  if (!run.fingerprint.empty()) writer.member("fingerprint", run.fingerprint);
  writer.member("device", run.device).member("weights", run.weights).member("data", run.data);
  write_reals(writer, "loss", run.loss);
  write_reals(writer, "loss_scale", run.loss_scale);
  writer.key("skipped_steps").begin_array();
  for (const std::int64_t step : run.skipped_steps) writer.integer(step);
  writer.end_array();
  write_reals(writer, "step_seconds", run.step_seconds);
  writer.member("tokens_per_second", run.tokens_per_second);
  writer.member("out_of_memory", run.out_of_memory).member("stopped_at_retries", run.stopped_at_retries);
  writer.member("message", run.message);
  writer.key("ranks").begin_array();
  for (const MeasuredRank& rank : run.ranks) {
    writer.begin_object();
    write_rank_members(writer, rank.memory);
    writer.member("pinned_bytes", rank.pinned).member("host_bytes", rank.host).member("peak_rss_bytes", rank.peak_rss);
    write_arena(writer, rank.arena);
    writer.end_object();
  }
  writer.end_array().member("worst", run.worst).end_object();
  return writer.take();
}

RunRecord run_from_json(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  JsonObject object(document, file);
  check_schema(object, "run");
  RunRecord run;
  JsonObject model = object.object("model");
  run.model_name = model.text("name");
  run.parameters = model.integer("parameters", 0, std::numeric_limits<std::int64_t>::max());
  model.finish();
  JsonObject job = object.object("job");
  std::vector<std::string> fields_set;
  read_job(job, run.job, fields_set);
  JsonObject cluster = object.object("cluster");
  run.cluster = read_cluster(cluster);
  if (object.has("effects")) run.effects = read_effects(object.object("effects"));
  if (object.has("fingerprint")) run.fingerprint = object.text("fingerprint");
  run.device = object.text("device");
  run.weights = object.text("weights");
  run.data = object.text("data");
  run.loss = object.reals("loss");
  run.loss_scale = object.reals("loss_scale");
  run.skipped_steps = object.integers("skipped_steps", 1, std::numeric_limits<std::int64_t>::max());
  run.step_seconds = object.reals("step_seconds");
  run.tokens_per_second = object.real("tokens_per_second", 0, std::numeric_limits<double>::max());
  run.out_of_memory = object.boolean("out_of_memory");
  run.stopped_at_retries = object.has("stopped_at_retries") && object.boolean("stopped_at_retries");
  run.message = object.text("message");
  std::vector<JsonObject> entries = object.objects("ranks");
  if (entries.empty()) object.fail("ranks", "has no entries");
  for (JsonObject& entry : entries) run.ranks.push_back(read_measured_rank(entry));
  run.worst = static_cast<int>(object.integer("worst", 0, static_cast<std::int64_t>(run.ranks.size()) - 1));
  object.finish();
  return run;
}

}  // namespace vramfit
