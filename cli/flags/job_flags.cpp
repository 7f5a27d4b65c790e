#include "cli/flags/job_flags.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/conflict.h"
#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/flags/imported_choices.h"
#include "estimator/bound/margins.h"
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
  command
      .add_option("--gpus", flags.gpus,
                  "What the job runs on, as [NODESx]COUNTxCARD: 8xH100-80GB, 2x8xA100-40GB, 4x24GB, 2xcpu-4GiB")
      ->type_name("CLUSTER")
      ->group(kCommonFlags);
  command
      .add_option("--host-memory", flags.host_memory,
                  "Host memory of each node that ranks may use, such as 64GiB; the verdict then counts what they keep "
                  "there. Default: no limit")
      ->type_name("SIZE")
      ->group(kCommonFlags);
  const auto fields = job_fields();
  flags.values.resize(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const JobField& field = fields[i];
    CLI::Option* option = command.add_option(flag_of(field), flags.values[i])->expected(1);
    option->allow_extra_args(false);  // the next word is MODEL, not another value
    option->description(std::string(field.help))->type_name(std::string(field.values))->group(heading_of(field.group));
    if (field.form == FieldForm::list) option->take_all();
  }
  command
      .add_option("--job", flags.job_files,
                  "Read the job from a JSON file, or from a configuration of another library (\"vramfit import\"); may "
                  "be repeated; flags override it")
      ->type_name("FILE")
      ->group(kCommonFlags)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command.add_option("--set", flags.set, "Set a field of the job by name; may be repeated")
      ->type_name("KEY=VALUE")
      ->group(kCommonFlags)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

bool sets_any_field(const JobFlags& flags) {
  return !flags.set.empty() || std::ranges::any_of(flags.values, [](const auto& values) { return !values.empty(); });
}

bool any_job_flag(const JobFlags& flags) {
  return !flags.gpus.empty() || !flags.host_memory.empty() || !flags.confidence.empty() || !flags.job_files.empty() ||
         !flags.stack.empty() || sets_any_field(flags);
}

struct JobFile {
  std::string name;
  JsonValue document;
};

namespace {

const std::vector<JobFile>& read_job_files(const JobFlags& flags) {
  if (!flags.read_files) {
    std::vector<JobFile> files;
    for (const std::string& name : flags.job_files) files.push_back({name, parse_json(read_file(name), name)});
    flags.read_files = std::make_shared<const std::vector<JobFile>>(std::move(files));
  }
  return *flags.read_files;
}

/// Of the first cluster where there are several to choose from; 0 where they are searched for.
std::int64_t cards_of(const std::string& gpus) {
  try {
    return gpus.empty() ? 0 : parse_cluster(gpus.substr(0, gpus.find(','))).cards();
  } catch (const InputError&) {
    return 0;  // whoever needs it says what is wrong
  }
}

/// QLoRA's weights are codes: with none, it is LoRA by another name. A job without a format looks like one in which
/// nobody chose any, so that only here is it known.
void require_codes_of_qlora(const JobChoice& choice) {
  const bool is_set = std::ranges::find(choice.fixed, "quantization") != choice.fixed.end();
  if (choice.job.method != Method::qlora || !is_set || choice.job.quantization != "none") return;
  throw Conflict(
      "--method qlora with --quantization none: its frozen weights have few bits; use --method lora, or "
      "leave --quantization out");
}

/// `base` is unresolved_job(), or what a stack made of it, which then has no choices of other libraries' files.
JobChoice read_on(Job base, const JobFlags& flags, std::int64_t cards, bool is_of_stack = true) {
  JobChoice choice{.job = std::move(base), .fixed = {}};
  std::vector<std::string> set;
  const auto import = [&](std::string_view name, const std::string& value) {
    set_job_field(choice.job, job_field_named(name), value, "--job");
    set.emplace_back(name);
  };
  const Job there = choice.job;
  for (const auto& [name, value] : flags.imported) {
    const std::optional<std::string> kept = is_of_stack ? choice_on(name, value, there) : value;
    if (kept) import(name, *kept);
  }
  if (flags.copies_on_several && cards > 1) import("sharding", "no-shard");
  for (const JobFile& file : read_job_files(flags)) {
    JsonObject object(file.document, file.name);
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
  require_codes_of_qlora(choice);
  return choice;
}

}  // namespace

void require_said_once(const JobFlags& flags) {
  std::map<std::string_view, std::string> said;  // by field; as it would be without others, some of which set it, too
  const auto read = [](const JobField& field, const std::string& value, const std::string& flag) {
    Job job = unresolved_job();
    set_job_field(job, field, value, flag);
    return field.get(job);
  };
  const auto fields = job_fields();
  for (std::size_t i = 0; i < std::min(fields.size(), flags.values.size()); ++i) {
    if (flags.values[i].empty()) continue;
    said.emplace(fields[i].name,
                 read(fields[i], fmt::format("{}", fmt::join(flags.values[i], ",")), flag_of(fields[i])));
  }
  for (const std::string& assignment : flags.set) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos) continue;  // refused where it is read
    const JobField& field = job_field_named(assignment.substr(0, equals));
    const std::string value = read(field, assignment.substr(equals + 1), fmt::format("--set {}", field.name));
    const auto [before, is_new] = said.emplace(field.name, value);
    if (!is_new && before->second != value) {
      throw InputError(fmt::format("--set {}: contradicts {} {}; leave one of them out", printable(assignment),
                                   flag_of(field), before->second));
    }
  }
}

JobChoice read_job_choice(const JobFlags& flags) {
  return read_on(unresolved_job(), flags, cards_of(flags.gpus), false);
}

void add_stack_flag(CLI::App& command, JobFlags& flags, const char* by_default) {
  flags.has_stack = true;
  std::string names, lacking;
  for (const Stack& stack : stacks()) {
    names += fmt::format("{}{}", names.empty() ? "" : "|", stack.name);
    if (stack.one_gpu.empty() && stack.several_gpus.empty()) {
      lacking += fmt::format("{}{}", lacking.empty() ? "" : ", ", stack.name);
    }
  }
  command
      .add_option("--stack", flags.stack,
                  fmt::format("The library that trains; it sets --runtime, --modeling and the library's own defaults "
                              "({}: not modelled yet; \"vramfit estimate --exact\" rehearses it). Default: {}",
                              lacking, by_default))
      ->type_name(names)
      ->group(kCommonFlags);
}

/// FSDP1 with one of the stack's other ways to train, which have runtimes of their own.
void require_fsdp1_of_stack(const Job& job, const Stack& stack, const Cluster& cluster) {
  if (job.runtime != Runtime::pytorch_fsdp1) return;
  if (stack.with_fsdp1.empty()) {
    throw Conflict(
        fmt::format("--stack {} with --runtime pytorch-fsdp1 (--stack transformers and trl have it)", stack.name));
  }
  if (cluster.cards() == 1) {
    throw Conflict("--runtime pytorch-fsdp1 on one GPU: there is nothing to shard; leave it out");
  }
  if (job.sharding == "no-shard") {
    throw Conflict(fmt::format(
        "--runtime pytorch-fsdp1 with --sharding no-shard: copies are DDP's on --stack {}; leave --runtime out",
        stack.name));
  }
}

/// A stack's default for the micro-batch (trl-grpo's 8 rows) gives way to a global batch that was set: the number of
/// micro-batches decides it, or else it is the largest number of rows up to the default that divides each rank's.
void fit_default_micro_batch(JobChoice& choice, const Cluster& cluster) {
  const auto is_set = [&](std::string_view field) {
    return std::ranges::find(choice.fixed, field) != choice.fixed.end();
  };
  std::int64_t& micro = choice.job.micro_batch;
  if (micro == 0 || is_set("micro_batch") || !is_set("global_batch")) return;
  if (is_set("grad_accum")) {
    micro = 0;
    return;
  }
  if (choice.job.global_batch % cluster.cards() != 0) return;  // refused later
  const std::int64_t rows = choice.job.global_batch / cluster.cards();
  while (rows % micro != 0) --micro;
}

JobChoice read_job_choice(const JobFlags& flags, const Stack& stack, const Cluster& cluster) {
  std::span<const StackDefault> defaults = defaults_of(stack, cluster);
  JobChoice choice = read_on(on_stack(unresolved_job(), defaults), flags, cluster.cards());
  if (choice.job.sharding == "no-shard" && stack.name != "vramfit") {
    defaults = defaults_of(stack, cluster, true);
    choice = read_on(on_stack(unresolved_job(), defaults), flags, cluster.cards());
  }
  require_fsdp1_of_stack(choice.job, stack, cluster);
  if (choice.job.runtime == Runtime::pytorch_fsdp1) {
    defaults = stack.with_fsdp1;
    choice = read_on(on_stack(unresolved_job(), defaults), flags, cluster.cards());
  }
  const Stack& of_runtime = choice.job.runtime == Runtime::deepspeed ? with_deepspeed(stack) : stack;
  if (&of_runtime != &stack) return read_job_choice(flags, of_runtime, cluster);
  fit_default_micro_batch(choice, cluster);
  for (const std::string_view name : {"runtime", "modeling"}) {
    const JobField& field = job_field_named(name);
    const auto given = std::ranges::find(choice.fixed, name);
    const auto set = std::ranges::find(defaults, name, &StackDefault::field);
    if (given != choice.fixed.end() && (set == defaults.end() || field.get(choice.job) != set->value)) {
      throw Conflict(fmt::format("--stack {}: contradicts {} {}; leave one of them out", stack.name, flag_of(field),
                                 field.get(choice.job)));
    }
    if (given == choice.fixed.end() && set != defaults.end()) choice.fixed.emplace_back(name);
  }
  return choice;
}

const Stack* stack_of_flag(const JobFlags& flags) {
  if (flags.stack.empty()) return nullptr;
  try {
    return &stack_named(flags.stack);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--stack: {}", error.what()));
  }
}

std::string without_rules_text(const Stack& stack, const Cluster& cluster) {
  return fmt::format("--stack {} on {}{}", stack.name, cluster.cards() == 1 ? "one GPU" : "several GPUs",
                     cluster.is_cpu() ? "" : " (--stack transformers and vramfit have rules there)");
}

JobChoice read_job_choice_on_stack(const JobFlags& flags, const Cluster& cluster) {
  const Stack* const stack = stack_of_flag(flags);
  if (stack == nullptr) return read_job_choice(flags);
  const bool has_rules_elsewhere = !stack->one_gpu.empty() || !stack->several_gpus.empty();
  if (defaults_of(*stack, cluster).empty() && has_rules_elsewhere) {
    throw NotModelled(without_rules_text(*stack, cluster));
  }
  if (defaults_of(*stack, cluster).empty()) {
    throw NotModelled(fmt::format(
        "--stack {} on {} (\"vramfit estimate --stack {} --exact\" rehearses it, and \"vramfit rehearse --recipe NAME "
        "--search\" finds what fits)",
        stack->name, cluster.cards() == 1 ? "one GPU" : "several GPUs", stack->name));
  }
  return read_job_choice(flags, *stack, cluster);
}

void add_confidence_flag(CLI::App& command, JobFlags& flags) {
  command
      .add_option("--confidence", flags.confidence,
                  "Derive upper bounds from recorded cases so that this share of cases stays below them; from 0.5 to "
                  "the most that the number of cases supports (docs/upper-bound.md). Default: 2 % of reserved memory "
                  "and 25 % of memory outside the allocator, chosen by judgement")
      ->type_name("SHARE")
      ->group(kMemoryFlags);
}

Cluster read_cluster_flag(const JobFlags& flags) {
  if (flags.gpus.empty()) {
    throw InputError(
        "--gpus: missing; say what the job runs on, for example --gpus 8xH100-80GB or --gpus 2xcpu-4GiB "
        "(\"vramfit estimate MODEL\" without it lists the cards that would hold the job)");
  }
  Cluster cluster = parse_cluster(flags.gpus);
  if (!flags.host_memory.empty()) set_host_memory(cluster, flags.host_memory);
  if (!flags.confidence.empty()) set_confidence(cluster, flags.confidence);
  return cluster;
}

}  // namespace vramfit
