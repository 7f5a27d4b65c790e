#include "cli/flags/job_flags.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "job/cluster/host_memory.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"

namespace vramfit {

namespace {

const char* heading_of(FieldGroup group) {
  switch (group) {
    case FieldGroup::common:
      return kCommonFlags;
    case FieldGroup::sharding:
      return kShardingFlags;
    case FieldGroup::precision:
      return kPrecisionFlags;
    case FieldGroup::memory:
      return kMemoryFlags;
    case FieldGroup::software:
      return kSoftwareFlags;
  }
  return kCommonFlags;
}

}  // namespace

void add_job_flags(CLI::App& command, JobFlags& flags) {
  command.add_option("MODEL", flags.model, "Catalog name, hub id, directory, config.json or safetensors file");
  command.add_option("--gpus", flags.gpus, "[NODESx]COUNTxCARD: 8xH100-80GB, 2x8xA100-40GB, 4x24GB, 2xcpu-4GiB")
      ->type_name("CLUSTER")
      ->group(kCommonFlags);
  command
      .add_option("--host-memory", flags.host_memory,
                  "Host memory of a node that ranks may use (64GiB): what they keep there counts for the verdict. "
                  "Default: not limited")
      ->type_name("SIZE")
      ->group(kCommonFlags);
  const auto fields = job_fields();
  flags.values.resize(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const JobField& field = fields[i];
    CLI::Option* option = field.name == "deterministic"
                              ? command.add_flag(flag_of(field) + "{on}", flags.values[i])
                              : command.add_option(flag_of(field), flags.values[i])->expected(1);
    option->allow_extra_args(false);  // the next word is MODEL, not another value
    option->description(std::string(field.help))->type_name(std::string(field.values))->group(heading_of(field.group));
    if (field.form == FieldForm::list) option->take_all();
  }
  command.add_option("--job", flags.job_file, "Read the job from a JSON file; flags override it")
      ->type_name("FILE")
      ->group(kCommonFlags);
  command.add_option("--set", flags.set, "Set a field of the job by name; may be repeated")
      ->type_name("KEY=VALUE")
      ->group(kCommonFlags)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

bool any_job_flag(const JobFlags& flags) {
  return !flags.gpus.empty() || !flags.host_memory.empty() || !flags.job_file.empty() || !flags.set.empty() ||
         std::ranges::any_of(flags.values, [](const auto& values) { return !values.empty(); });
}

JobChoice read_job_choice(const JobFlags& flags) {
  JobChoice choice{.job = unresolved_job(), .fixed = {}};
  std::vector<std::string> set;
  if (!flags.job_file.empty()) {
    const std::string text = read_file(flags.job_file);
    const JsonValue document = parse_json(text, flags.job_file);
    JsonObject object(document, flags.job_file);
    read_job(object, choice.job, set);
  }
  const auto fields = job_fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (flags.values[i].empty()) continue;
    set_job_field(choice.job, fields[i], fmt::format("{}", fmt::join(flags.values[i], ",")), flag_of(fields[i]));
    set.emplace_back(fields[i].name);
  }
  for (const std::string& assignment : flags.set) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos) throw InputError(fmt::format("--set {}: is not KEY=VALUE", printable(assignment)));
    const JobField& field = job_field_named(assignment.substr(0, equals));
    set_job_field(choice.job, field, assignment.substr(equals + 1), fmt::format("--set {}", field.name));
    set.emplace_back(field.name);
  }
  for (const JobField& field : fields) {
    if (std::ranges::find(set, field.name) != set.end()) choice.fixed.emplace_back(field.name);
  }
  return choice;
}

Cluster read_cluster_flag(const JobFlags& flags) {
  if (flags.gpus.empty()) {
    throw InputError(
        "--gpus: missing; say what the job runs on, for example --gpus 8xH100-80GB or --gpus 2xcpu-4GiB "
        "(\"vramfit estimate MODEL\" without it lists the cards that would hold the job)");
  }
  Cluster cluster = parse_cluster(flags.gpus);
  if (!flags.host_memory.empty()) set_host_memory(cluster, flags.host_memory);
  return cluster;
}

}  // namespace vramfit
