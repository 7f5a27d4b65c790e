#include "program/files/measurements.h"

#include <array>
#include <limits>
#include <utility>

#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "model_specs/dtype.h"

namespace vramfit {

namespace {

constexpr double kMostReal = std::numeric_limits<double>::max();
constexpr std::int64_t kMostWhole = std::numeric_limits<std::int64_t>::max();
constexpr double kMostSeconds = 1e6;

using WorkUnit = Work::Unit;
constexpr std::array<std::pair<WorkUnit, std::string_view>, 9> kUnits{
    {{WorkUnit::none, "none"},
     {WorkUnit::product, "product"},
     {WorkUnit::attention, "attention"},
     {WorkUnit::attention_backward, "attention_backward"},
     {WorkUnit::cudnn_attention, "cudnn_attention"},
     {WorkUnit::cudnn_attention_backward, "cudnn_attention_backward"},
     {WorkUnit::cast, "cast"},
     {WorkUnit::eager_cast, "eager_cast"},
     {WorkUnit::host_link, "host_link"}}};
constexpr std::array kCollectives{program::Collective::all_gather, program::Collective::reduce_scatter,
                                  program::Collective::all_reduce};

std::string_view unit_name(WorkUnit unit) {
  for (const auto& [known, name] : kUnits) {
    if (known == unit) return name;
  }
  return "";
}

WorkUnit read_unit(JsonObject& object) {
  const std::string text = object.text("unit");
  for (const auto& [unit, name] : kUnits) {
    if (name == text) return unit;
  }
  object.fail("unit", "is unknown");
}

void write_work(JsonWriter& writer, const Work& work) {
  writer.begin_object().member("unit", unit_name(work.unit)).member("dtype", dtype_name(work.dtype));
  writer.member("launches", work.launches).member("flops", work.flops).member("bytes", work.bytes);
  writer.member("rows", work.shape.rows).member("columns", work.shape.columns).member("inner", work.shape.inner);
  writer.end_object();
}

Work read_work(JsonObject& object) {
  Work work;
  work.unit = read_unit(object);
  work.dtype = parse_dtype(object.text("dtype"));
  work.launches = object.integer("launches", 0, kMostWhole);
  work.flops = object.real("flops", 0, kMostReal);
  work.bytes = object.real("bytes", 0, kMostReal);
  work.shape = {object.integer("rows", 0, kMostWhole), object.integer("columns", 0, kMostWhole),
                object.integer("inner", 0, kMostWhole)};
  object.finish();
  return work;
}

void write_copies(JsonWriter& writer, std::string_view name, const std::vector<MeasuredCopy>& copies) {
  writer.key(name).begin_array();
  for (const MeasuredCopy& copy : copies) {
    writer.begin_object().member("group", copy.group).member("bytes", copy.bytes);
    writer.member("seconds", copy.seconds).end_object();
  }
  writer.end_array();
}

std::vector<MeasuredCopy> read_copies(JsonObject& object, std::string_view name) {
  std::vector<MeasuredCopy> copies;
  for (JsonObject& entry : object.objects(name)) {
    copies.push_back({.group = entry.text("group"),
                      .bytes = entry.real("bytes", 1, kMostReal),
                      .seconds = entry.real("seconds", 0, kMostSeconds)});
    entry.finish();
  }
  return copies;
}

MeasuredKernel read_kernel(JsonObject& object) {
  MeasuredKernel kernel{.group = object.text("group"), .work = {}, .seconds = object.real("seconds", 0, kMostSeconds)};
  for (JsonObject& work : object.objects("work")) kernel.work.push_back(read_work(work));
  object.finish();
  return kernel;
}

MeasuredCollective read_collective(JsonObject& object) {
  MeasuredCollective measured{.bytes = {object.integer("bytes", 1, kMostWhole)},
                              .seconds = object.real("seconds", 0, kMostSeconds)};
  const std::string text = object.text("collective");
  bool is_known = false;
  for (const program::Collective collective : kCollectives) {
    if (program::collective_name(collective) != text) continue;
    measured.collective = collective;
    is_known = true;
  }
  if (!is_known) object.fail("collective", "is unknown");
  object.finish();
  return measured;
}

}  // namespace

std::string measurements_to_json(const Measurements& measurements) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/measurements@1");
  writer.member("device", measurements.device).member("ranks", measurements.ranks);
  writer.member("seconds", measurements.seconds).member("launch_seconds", measurements.launch_seconds);
  writer.key("kernels").begin_array();
  for (const MeasuredKernel& kernel : measurements.kernels) {
    writer.begin_object().member("group", kernel.group).member("seconds", kernel.seconds).key("work").begin_array();
    for (const Work& work : kernel.work) write_work(writer, work);
    writer.end_array().end_object();
  }
  writer.end_array();
  write_copies(writer, "copies", measurements.copies);
  write_copies(writer, "updates_on_host", measurements.updates_on_host);
  writer.key("collectives").begin_array();
  for (const MeasuredCollective& measured : measurements.collectives) {
    writer.begin_object().member("collective", program::collective_name(measured.collective));
    writer.member("bytes", measured.bytes).member("seconds", measured.seconds).end_object();
  }
  return writer.end_array().end_object().take();
}

Measurements measurements_from_json(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  JsonObject object(document, file);
  if (object.text("schema") != "vramfit/measurements@1") object.fail("schema", "is not vramfit/measurements@1");
  Measurements measurements;
  measurements.device = object.text("device");
  measurements.ranks = static_cast<int>(object.integer("ranks", 1, 1'000'000));
  measurements.seconds = object.real("seconds", 0, kMostSeconds);
  measurements.launch_seconds = object.real("launch_seconds", 0, kMostSeconds);
  for (JsonObject& kernel : object.objects("kernels")) measurements.kernels.push_back(read_kernel(kernel));
  measurements.copies = read_copies(object, "copies");
  measurements.updates_on_host = read_copies(object, "updates_on_host");
  for (JsonObject& entry : object.objects("collectives")) measurements.collectives.push_back(read_collective(entry));
  object.finish();
  return measurements;
}

}  // namespace vramfit
