#include "cli/configs/job_configs.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/configs/import.h"
#include "cli/configs/result_jobs.h"
#include "cli/flags/imported_choices.h"
#include "cli/format/import_text.h"
#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

/// Whether it begins with a number of cards: "8xH100-80GB", as opposed to "24GB".
bool has_count(const std::string& gpus) {
  const auto end = std::ranges::find_if_not(gpus, [](unsigned char c) { return std::isdigit(c) != 0; });
  return end != gpus.begin() && end != gpus.end() && (*end == 'x' || *end == 'X' || *end == '*');
}

void apply_gpus(JobFlags& flags, const GpuCount& count) {
  if (count.per_node == 0) return;
  const std::string said = cluster_text(count, "");
  if (flags.gpus.empty()) return;
  if (!has_count(flags.gpus)) {
    flags.gpus = cluster_text(count, flags.gpus);
  } else if (!flags.gpus.starts_with(said)) {
    complain("vramfit", fmt::format("note: --job is for {} GPUs, --gpus says {}", count.nodes * count.per_node,
                                    printable(flags.gpus)));
  }
}

void refuse_without_gpus(const JobFlags& flags, const ImportedJob& job) {
  if (!flags.gpus.empty() || !flags.has_stack || flags.stack.empty() || flags.stack == "vramfit") return;
  const std::string example = cluster_text(job.gpus.per_node > 0 ? job.gpus : GpuCount{1, 1}, "H100-80GB");
  throw InputError(fmt::format("--gpus: missing; --job doesn't name the card, say it, for example --gpus {}", example));
}

/// The trainer of TRL that --stack names, without DeepSpeed; "" for other stacks.
std::string trainer_of_stack(const JobFlags& flags) {
  constexpr std::string_view kWith = "-deepspeed";
  if (!flags.stack.starts_with("trl")) return "";
  return flags.stack.ends_with(kWith) ? flags.stack.substr(0, flags.stack.size() - kWith.size()) : flags.stack;
}

/// A default length would be another job's.
void refuse_without_length(const JobFlags& flags, const ImportedJob& job) {
  if (job.open_length.empty()) return;
  const std::vector<std::string> fixed = read_job_choice(flags).fixed;
  if (std::ranges::find(fixed, "seq_len") != fixed.end()) return;
  throw InputError(fmt::format("--seq-len: missing; {} leaves rows as long as the data have them: give the longest",
                               job.open_length));
}

std::string summary(const ImportedJob& job) {
  std::string files, paths;
  for (const ImportedJob::File& file : job.files) {
    files += fmt::format("{}{} is {}", files.empty() ? "" : ", ", printable(file.path, 300), file.what);
    const std::string path = fmt::format(" {}", printable(file.path, 300));
    if (!paths.ends_with(path)) paths += path;  // a command may hold two tools' flags
  }
  return fmt::format("{}: {} keys understood, {} ignored, {} settings assumed (\"vramfit import{}\" lists them)", files,
                     job.understood.size(), job.ignored.size(), job.assumed.size(), paths);
}

/// Of a DeepSpeed file with --stack vramfit, its buckets: read_job_choice() leaves them out.
void note_foreign_choices(JobFlags& flags) {
  if (flags.stack.empty()) return;
  const Stack& stack = stack_named(flags.stack);
  const Job there = on_stack(unresolved_job(), stack.one_gpu.empty() ? stack.several_gpus : stack.one_gpu);
  std::string left_out;
  for (const auto& [field, value] : flags.imported) {
    if (choice_on(field, value, there) == value) continue;
    left_out += fmt::format("{}{} {}", left_out.empty() ? "" : ", ", flag_of(job_field_named(field)), value);
  }
  if (left_out.empty()) return;
  flags.assumed.push_back(fmt::format("left out, as {} has no such choice: {}", stack.what, left_out));
}

/// Whether a program that trains with the files as they are trains the job that is asked about.
bool is_program_for(const JobFlags& flags, const ImportedJob& job) {
  const bool is_of_stack = flags.stack.empty() || flags.stack == job.stack;
  return !sets_any_field(flags) && is_of_stack && flags.model == job.model;
}

/// Those of other tools.
void apply_foreign(JobFlags& flags) {
  std::vector<std::string> foreign;
  for (const std::string& path : flags.job_files) {
    if (is_foreign_config(path)) foreign.push_back(path);
  }
  if (foreign.empty()) return;
  std::erase_if(flags.job_files,
                [&](const std::string& path) { return std::ranges::find(foreign, path) != foreign.end(); });
  const ImportedJob job = import_configs(foreign, {}, trainer_of_stack(flags), flags.model);
  if (flags.model.empty()) flags.model = job.model;
  if (flags.stack.empty() && flags.has_stack) flags.stack = job.stack;
  apply_gpus(flags, job.gpus);
  refuse_without_gpus(flags, job);
  flags.imported = job.fields;
  note_foreign_choices(flags);
  refuse_without_length(flags, job);
  flags.copies_on_several = job.is_ddp_on_several;
  flags.clips = job.clips;
  if (is_program_for(flags, job)) flags.program = job.program;
  for (const Finding& finding : job.unmodelled) flags.unmodelled.push_back(finding_text(finding));
  for (const Finding& finding : job.assumed) flags.assumed.push_back(fmt::format("{}, by --job", finding.says));
  complain("vramfit", summary(job));
}

}  // namespace

void apply_configs(JobFlags& flags) {
  require_said_once(flags);
  apply_foreign(flags);
  apply_results(flags);
}

std::string unmodelled_text(const JobFlags& flags) {
  constexpr std::size_t kShown = 3;
  if (flags.unmodelled.empty()) return "";
  const std::size_t shown = std::min(kShown, flags.unmodelled.size());
  const auto first = flags.unmodelled.begin();
  std::string text = fmt::format("{}", fmt::join(first, first + static_cast<std::ptrdiff_t>(shown), "; "));
  if (flags.unmodelled.size() > shown) text += fmt::format("; and {} more", flags.unmodelled.size() - shown);
  return text;
}

void require_modelled(const JobFlags& flags) {
  if (!flags.unmodelled.empty()) throw NotModelled(unmodelled_text(flags));
}

}  // namespace vramfit
