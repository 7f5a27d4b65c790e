#include "cli/configs/result_jobs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "base/text/units.h"
#include "cli/files.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"
#include "job/stacks/job_defaults.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

constexpr std::array<std::string_view, 3> kWithJob{"plan", "run", "estimate"};

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

/// "65536MiB", as --host-memory takes it.
std::string host_memory_text(Bytes bytes) {
  return fmt::format("{}MiB", static_cast<double>(bytes.n) / static_cast<double>(kMiB.n));
}

/// The document's, with its host memory where its text doesn't tell it.
void apply_cluster(JobFlags& flags, const Cluster& cluster) {
  if (!flags.gpus.empty()) return;
  flags.gpus = cluster.text;
  const bool is_told = cluster.text.find(',') != std::string::npos;
  if (cluster.host_memory.n == 0 || cluster.is_cpu() || is_told || !flags.host_memory.empty()) return;
  flags.host_memory = host_memory_text(cluster.host_memory);
}

/// The job as its library's stack begins it on `cluster`; nothing where no stack has its runtime with its modeling.
std::optional<Job> begun_by_stack(const Job& job, const Cluster& cluster) {
  const Job begun = on_stack(unresolved_job(), job_defaults(stack_of(job), job, cluster));
  const bool is_of_stack = begun.runtime == job.runtime && begun.modeling == job.modeling;
  return is_of_stack ? std::optional(begun) : std::nullopt;
}

void apply_result(JobFlags& flags, JsonObject& document, const std::string& path) {
  if (document.is_text("verdict") && document.text("verdict") == "no_plan") {
    document.fail("verdict", "no_plan: the search found no job that fits");
  }
  if (flags.model.empty()) flags.model = model_of(document.object("model"));
  JsonObject cluster_object = document.object("cluster"), job_object = document.object("job");
  const Cluster cluster = read_cluster(cluster_object);
  apply_cluster(flags, cluster);
  Job job = unresolved_job();
  std::vector<std::string> set;
  read_job(job_object, job, set);
  if (document.has("clip")) flags.clips = flags.clips && document.boolean("clip");
  const bool is_elsewhere = is_on_other_cards(flags.gpus, cluster);
  // On other cards the library may train in another way: what it sets by itself, it sets anew.
  std::optional<Job> begun;
  if (is_elsewhere && flags.has_stack) begun = begun_by_stack(job, cluster);
  if (begun && flags.stack.empty()) flags.stack = stack_of(job).name;
  for (const JobField& field : job_fields()) {
    if (begun && field.get(job) == field.get(*begun) && job.runtime != Runtime::pytorch_fsdp1) continue;
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
    const auto* const kind = std::ranges::find_if(
        kWithJob, [&](std::string_view each) { return schema.starts_with(fmt::format("vramfit/{}@", each)); });
    if (kind == kWithJob.end()) {
      document.fail("schema", fmt::format("\"{}\" is no job; give a job's file, a plan, a run or an estimate",
                                          printable(schema)));
    }
    check_schema(document, *kind);
    apply_result(flags, document, path);
    return true;
  });
}

}  // namespace vramfit
