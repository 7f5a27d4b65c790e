#include "job/fields/job_json.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/numbers/most_bytes.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostCardBytes = std::int64_t{1} << 50;  // 1 PiB, as in --gpus
constexpr std::int64_t kMostCards = std::int64_t{1} << 20;
constexpr double kMostRate = 1e24;  // FLOP/s or bytes/s: far above any machine

/// A number that may be left to the model.
bool may_be_auto(const JobField& field) { return field.values.ends_with("|auto"); }

std::string field_text(JsonObject& object, const JobField& field) {
  switch (field.form) {
    case FieldForm::text:
      return object.text(field.name);
    case FieldForm::integer:
      if (may_be_auto(field) && object.is_text(field.name)) return object.text(field.name);
      return fmt::to_string(object.integer(field.name, 1, std::numeric_limits<std::int64_t>::max()));
    case FieldForm::toggle:
      return object.boolean(field.name) ? "on" : "off";
    case FieldForm::list:
      return fmt::format("{}", fmt::join(object.texts(field.name), ","));
  }
  return "";
}

/// What came later is left out while it is off, so that plan files and fingerprints from before are what they were.
/// Reductions that overlap by default are left out while they do.
bool is_left_out(const JobField& field, const Job& job, const std::string& value) {
  if (field.form == FieldForm::list) return false;
  if (value.empty()) return true;
  if (field.name == "find_unused_parameters") return false;
  if (field.form != FieldForm::toggle || field.in_plan != InPlan::optional) return false;
  if (field.name != "overlap_comm") return value == "off";
  Job absent = job;
  absent.overlap_comm.reset();
  return value == field.get(absent);
}

void write_card(JsonWriter& writer, const Card& card) {
  const Device& device = card.device;
  writer.key("card").begin_object();
  writer.member("name", card.name).member("device", device.kind == DeviceKind::cpu ? "cpu" : "cuda");
  writer.member("device_name", device.name).member("compute_capability", device.compute_capability);
  writer.member("sm_count", device.sm_count)
      .member("threads", device.threads)
      .member("onednn_bf16", device.onednn_bf16);
  writer.member("memory_bytes", card.memory).member("sold_as_gb", card.sold_as_gb);
  writer.member("bf16_flops", card.bf16_flops).member("fp32_flops", card.fp32_flops);
  writer.member("memory_bandwidth", card.memory_bandwidth).member("link_bandwidth", card.link_bandwidth);
  writer.member("pcie_bandwidth", card.pcie_bandwidth).member("context_bytes", card.context);
  if (card.pytorch_context != card.context) writer.member("pytorch_context_bytes", card.pytorch_context);
  writer.member("nccl_bytes", card.nccl).member("bf16", card.bf16);
  writer.end_object();
}

Card read_card(JsonObject object) {
  Card card;
  card.name = object.text("name");
  const std::string kind = object.text("device");
  if (kind != "cpu" && kind != "cuda")
    object.fail("device", fmt::format("unknown value \"{}\" (known: cpu, cuda)", printable(kind)));
  card.device.kind = kind == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  card.device.name = object.text("device_name");
  card.device.compute_capability = static_cast<int>(object.integer("compute_capability", 0, 1000));
  card.device.sm_count = static_cast<int>(object.integer("sm_count", 0, 1 << 16));
  card.device.threads = static_cast<int>(object.integer("threads", 1, 1 << 16));
  card.device.onednn_bf16 = object.boolean("onednn_bf16");
  card.memory = {object.integer("memory_bytes", 1, kMostCardBytes)};
  card.sold_as_gb = object.integer("sold_as_gb", 0, kMostStatedBytes);
  card.bf16_flops = object.real("bf16_flops", 0, kMostRate);
  card.fp32_flops = object.real("fp32_flops", 0, kMostRate);
  card.memory_bandwidth = object.real("memory_bandwidth", 0, kMostRate);
  card.link_bandwidth = object.real("link_bandwidth", 0, kMostRate);
  card.pcie_bandwidth = object.real("pcie_bandwidth", 0, kMostRate);
  card.context = {object.integer("context_bytes", 0, kMostCardBytes)};
  card.pytorch_context = object.has("pytorch_context_bytes")
                             ? Bytes{object.integer("pytorch_context_bytes", 0, kMostCardBytes)}
                             : card.context;
  card.nccl = {object.integer("nccl_bytes", 0, kMostCardBytes)};
  card.bf16 = object.boolean("bf16");
  object.finish();
  return card;
}

}  // namespace

void write_job_field(JsonWriter& writer, const JobField& field, const std::string& value) {
  switch (field.form) {
    case FieldForm::text:
      writer.member(field.name, value);
      return;
    case FieldForm::integer:
      if (may_be_auto(field) && value == "auto") {
        writer.member(field.name, value);
        return;
      }
      writer.member(field.name, whole_number(value, 0, std::numeric_limits<std::int64_t>::max()));
      return;
    case FieldForm::toggle:
      writer.member(field.name, value == "on");
      return;
    case FieldForm::list:
      writer.member(field.name, value.empty() || value == "none" ? std::vector<std::string>{} : split_list(value));
      return;
  }
}

void write_job(JsonWriter& writer, const Job& job) {
  writer.begin_object();
  for (const JobField& field : job_fields()) {
    const std::string value = field.get(job);
    if (!is_left_out(field, job, value)) write_job_field(writer, field, value);
  }
  writer.end_object();
}

std::string job_to_json(const Job& job) {
  JsonWriter writer;
  write_job(writer, job);
  return writer.take();
}

void read_job(JsonObject& object, Job& job, std::vector<std::string>& fields_set) {
  for (const JobField& field : job_fields()) {
    if (!object.has(field.name)) continue;
    const std::string value = field_text(object, field);
    std::string where = object.where(field.name);
    where.resize(where.size() - 2);  // set_job_field adds the ": "
    set_job_field(job, field, value, where);
    fields_set.emplace_back(field.name);
  }
  object.finish();
}

Job job_from_json(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  JsonObject object(document, file);
  if (object.has("schema")) {
    object.fail("schema", fmt::format("\"{}\" is no job; if it is a plan or a run, its \"job\" is one",
                                      printable(object.text("schema"))));
  }
  Job job = unresolved_job();
  std::vector<std::string> fields_set;
  read_job(object, job, fields_set);
  return job;
}

void write_cluster(JsonWriter& writer, const Cluster& cluster) {
  writer.begin_object();
  writer.member("text", cluster.text).member("nodes", cluster.nodes).member("cards_per_node", cluster.cards_per_node);
  write_card(writer, cluster.card);
  if (cluster.host_memory.n > 0) writer.member("host_memory_bytes", cluster.host_memory);
  writer.member("network_bandwidth", cluster.network_bandwidth).member("notes", cluster.notes);
  writer.end_object();
}

Cluster read_cluster(JsonObject& object) {
  Cluster cluster;
  cluster.text = object.text("text");
  cluster.nodes = object.integer("nodes", 1, kMostCards);
  cluster.cards_per_node = object.integer("cards_per_node", 1, kMostCards);
  cluster.card = read_card(object.object("card"));
  if (object.has("host_memory_bytes")) {
    cluster.host_memory = {object.integer("host_memory_bytes", 0, std::numeric_limits<std::int64_t>::max())};
  }
  cluster.network_bandwidth = object.real("network_bandwidth", 0, kMostRate);
  cluster.notes = object.texts("notes");
  object.finish();
  return cluster;
}

void check_schema(JsonObject& object, std::string_view kind) {
  const std::string schema = object.text("schema");
  if (schema == fmt::format("vramfit/{}@1", kind)) return;
  const std::string prefix = fmt::format("vramfit/{}@", kind);
  if (!schema.starts_with(prefix)) {
    object.fail("schema", fmt::format("\"{}\" is not a {} (vramfit/{}@1)", printable(schema), kind, kind));
  }
  object.fail("schema",
              fmt::format("\"{}\" is not known to this version, which reads {}1; use the vramfit that wrote it",
                          printable(schema), prefix));
}

}  // namespace vramfit
