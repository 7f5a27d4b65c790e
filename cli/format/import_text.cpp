#include "cli/format/import_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"

namespace vramfit {
namespace {

constexpr std::size_t kWidestPlace = 40, kWidestKey = 60;

std::string place_of(const Finding& finding) {
  return finding.line == 0 ? "" : fmt::format("{}:{}", printable(finding.file, 300), finding.line);
}

std::string section(std::string_view heading, const std::vector<Finding>& findings) {
  if (findings.empty()) return "";
  std::size_t places = 0, keys = 0;
  const auto key_of = [](const Finding& finding) {
    return printable(fmt::format("{}: {}", finding.key, finding.value), 120);
  };
  for (const Finding& finding : findings) {
    if (finding.line == 0) continue;
    places = std::max(places, std::min(place_of(finding).size(), kWidestPlace));
    keys = std::max(keys, std::min(key_of(finding).size(), kWidestKey));
  }
  std::string text = fmt::format("\n{}\n", heading);
  for (const Finding& finding : findings) {
    if (finding.line == 0) {
      text += fmt::format("  {}\n", printable(finding.says, 400));
    } else {
      text += fmt::format("  {:<{}}  {:<{}}  {}\n", place_of(finding), places, key_of(finding), keys,
                          printable(finding.says, 400));
    }
  }
  return text;
}

void write_findings(JsonWriter& writer, const char* name, const std::vector<Finding>& findings) {
  writer.key(name).begin_array();
  for (const Finding& finding : findings) {
    writer.begin_object();
    if (finding.line > 0) {
      writer.member("file", printable(finding.file, 4096)).member("line", finding.line);
      writer.member("key", printable(finding.key)).member("value", printable(finding.value));
    }
    writer.member("says", printable(finding.says, 400)).end_object();
  }
  writer.end_array();
}

void write_fields(JsonWriter& writer, const ImportedJob& job) {
  writer.begin_object();
  for (const auto& [name, value] : job.fields) write_job_field(writer, job_field_named(name), value);
  writer.end_object();
}

}  // namespace

std::string finding_text(const Finding& finding) {
  if (finding.line == 0) return finding.says;
  return fmt::format("{}: {}: {} ({})", place_of(finding), finding.key, finding.value, finding.says);
}

std::string import_text(const ImportedJob& job, const Terminal& terminal) {
  std::string text;
  for (const ImportedJob::File& file : job.files) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : " and ", printable(file.path, 300), file.what);
  }
  text += fmt::format("\n\n{}\n", styled(terminal, Style::bold, command_of(job)));
  text += section("Understood", job.understood);
  text += section("Assumed", job.assumed);
  text += section("Not modelled", job.unmodelled);
  text += section("Ignored", job.ignored);
  return text;
}

std::string import_to_json(const ImportedJob& job) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/import@1");
  writer.key("files").begin_array();
  for (const ImportedJob::File& file : job.files) {
    writer.begin_object().member("path", printable(file.path, 4096)).member("what", file.what).end_object();
  }
  writer.end_array();
  if (job.model.empty()) {
    writer.key("model").null();
  } else {
    writer.member("model", job.model);
  }
  writer.member("stack", job.stack);
  if (job.gpus.per_node == 0) {
    writer.key("nodes").null().key("gpus_per_node").null();
  } else {
    writer.member("nodes", job.gpus.nodes).member("gpus_per_node", job.gpus.per_node);
  }
  writer.key("job");
  write_fields(writer, job);
  writer.member("clip", job.clips).member("command", command_of(job));
  write_findings(writer, "understood", job.understood);
  write_findings(writer, "assumed", job.assumed);
  write_findings(writer, "not_modelled", job.unmodelled);
  write_findings(writer, "ignored", job.ignored);
  writer.end_object();
  return writer.take();
}

}  // namespace vramfit
