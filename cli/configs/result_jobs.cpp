#include "cli/configs/result_jobs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_value.h"
#include "base/process/standard_streams.h"
#include "base/suggest.h"
#include "cli/files.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"

namespace vramfit {
namespace {

constexpr std::array<std::string_view, 3> kWithJob{"vramfit/plan@1", "vramfit/run@1", "vramfit/estimate@1"};

/// As one names it again: the catalog's name, a file that is still there, or what it was called.
std::string model_of(JsonObject model) {
  constexpr std::string_view kCatalog = "catalog: ";
  const std::string name = model.text("name"), source = model.has("source") ? model.text("source") : "";
  if (source.starts_with(kCatalog)) return source.substr(kCatalog.size());
  std::error_code error;
  return !source.empty() && std::filesystem::exists(source, error) ? source : name;
}

/// Whether the flags name another number of cards. What is wrong with them is said by whoever needs them.
bool is_on_other_cards(const std::string& gpus, const Cluster& cluster) {
  try {
    return parse_cluster(gpus.substr(0, gpus.find(','))).cards() != cluster.cards();
  } catch (const InputError&) {
    return gpus != cluster.text;
  }
}

void apply_result(JobFlags& flags, JsonObject& document, const std::string& path) {
  if (document.is_text("verdict") && document.text("verdict") == "no_plan") {
    document.fail("verdict", "no_plan: the search found no job that fits");
  }
  if (flags.model.empty()) flags.model = model_of(document.object("model"));
  JsonObject cluster_object = document.object("cluster"), job_object = document.object("job");
  const Cluster cluster = read_cluster(cluster_object);
  if (flags.gpus.empty()) flags.gpus = cluster.text;
  Job job = unresolved_job();
  std::vector<std::string> set;
  read_job(job_object, job, set);
  if (document.has("clip")) flags.clips = flags.clips && document.boolean("clip");
  const bool is_elsewhere = is_on_other_cards(flags.gpus, cluster);
  for (const JobField& field : job_fields()) {
    const bool is_of_cards = field.name == "mesh" || field.name == "global_batch";
    if (std::ranges::find(set, field.name) == set.end() || (is_elsewhere && is_of_cards)) continue;
    flags.imported.emplace_back(field.name, field.get(job));
  }
  if (!is_elsewhere) return;
  complain("vramfit", fmt::format("note: {} is for {}; its --mesh and --global-batch are left out on {}",
                                  printable(path, 300), printable(cluster.text), printable(flags.gpus)));
}

}  // namespace

void apply_results(JobFlags& flags) {
  std::erase_if(flags.job_files, [&](const std::string& path) {
    const JsonValue value = parse_json(read_file(path), path);
    if (value.kind != JsonValue::Kind::object) return false;
    JsonObject document(value, path);
    if (!document.is_text("schema")) return false;
    const std::string schema = document.text("schema");
    if (std::ranges::find(kWithJob, schema) == kWithJob.end()) {
      document.fail("schema", fmt::format("\"{}\" is no job; give a job's file, a plan, a run or an estimate",
                                          printable(schema)));
    }
    apply_result(flags, document, path);
    return true;
  });
}

}  // namespace vramfit
