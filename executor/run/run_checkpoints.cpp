#include "executor/run/run_checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/checkpoint/crc32c.h"
#include "executor/checkpoint/final_folders.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/mask_digest.h"
#include "executor/training/trainer.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "job/run/run_flags.h"
#include "program/files/checkpoint_steps.h"
#include "program/files/peft_config.h"
#include "program/ops/fp8.h"
#include "program/stages/units_layout.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;
using Facts = std::vector<std::pair<std::string, std::string>>;

std::string model_fact(const Graph& graph) {
  std::string all;
  for (const Parameter& parameter : graph.parameters) {
    all += fmt::format("{} {};", parameter.name, fmt::join(parameter.shape, ","));
  }
  return fmt::format("{} parameters {:08x}", graph.parameters.size(), crc32c(all));
}

/// Rows and their number: data that moved to another path is the same data.
std::string data_fact(const Dataset& data, std::int64_t sequence) {
  constexpr std::int64_t kRows = 16;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(sequence)), labels(ids);
  std::uint32_t checksum = 0;
  for (std::int64_t row = 0; row < std::min(kRows, data.rows()); ++row) {
    data.row(row, ids, labels);
    checksum = crc32c({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int64_t)}, checksum);
  }
  return fmt::format("{} rows {:08x}", data.rows(), checksum);
}

/// Of two runs with one compute dtype, one may take products of FP8 factors.
std::string compute_fact(const Precision& precision) {
  return fmt::format("{}{}", dtype_name(precision.compute), wants_fp8(precision) ? " with FP8 products" : "");
}

std::vector<bool> scaled_parameters(const Graph& graph, const Job& job) {
  std::vector<bool> is_scaled(graph.parameters.size());
  for (const Unit& unit : lay_out_units(graph, job).units) {
    for (const UnitParameter& p : unit.parameters) is_scaled[static_cast<std::size_t>(p.parameter)] = p.is_scaled;
  }
  return is_scaled;
}

/// As they are kept: none is saved, so it doesn't matter how they are sent, nor whether a flag says the dtype.
std::string gradient_fact(const Job& job) {
  if (keeps_fp8_gradients(job)) return "fp8";
  const Dtype kept = kept_gradient_dtype(job);
  return kept == job.precision.storage ? "" : std::string(dtype_name(kept));
}

std::string mask_fact(const RunCheckpointInputs& inputs) {
  const Job& job = inputs.plan.job;
  const auto* file = std::get_if<GradientMaskFile>(&job.gradient_mask);
  if (file == nullptr) return job_field_named("gradient_mask").get(job);
  const bool reads = inputs.place.rank == 0;
  return inputs.groups.share_texts("masks", reads ? fmt::format("file, crc32c {:08x}", mask_digest(file->path)) : "")
      .front();
}

/// The model that adapters belong to, as PEFT names it: where its weights lie, or its id on the hub.
std::string base_of(const RunOptions& options, const PlanFile& plan) {
  if (options.weights != "random") return options.weights;
  std::error_code error;
  const bool is_id = plan.spec.name.find('/') != std::string::npos && !fs::exists(plan.spec.name, error);
  return is_id ? plan.spec.name : "";
}

bool is_same(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || fs::equivalent(a, b, error);
}

}  // namespace

Facts run_facts(const RunCheckpointInputs& inputs, const Graph& graph, const Dataset& data) {
  const PlanFile& plan = inputs.plan;
  // What others follow from comes first: the first difference is what is named.
  Facts facts{{"model", model_fact(graph)}, {"--compute-dtype", compute_fact(plan.job.precision)}};
  for (const JobField& field : job_fields()) {
    if (field.at_resume == AtResume::must_match) facts.emplace_back(flag_of(field), field.get(plan.job));
  }
  facts.emplace_back("--gradient-dtype", gradient_fact(plan.job));
  facts.emplace_back("--gradient-mask", mask_fact(inputs));
  facts.emplace_back("--optimizer", plan.job.optimizer);
  for (const RunFlag& flag : run_flags()) {
    const auto text = shared_text(flag, inputs.options);
    if (flag.must_match_at_resume && text) facts.emplace_back(flag.name, *text);
  }
  facts.emplace_back("--data", data_fact(data, plan.job.sequence));
  return facts;
}

RunCheckpoints::RunCheckpoints(const RunCheckpointInputs& inputs, const Graph& graph, const Dataset& data)
    : options_(inputs.options),
      plan_(inputs.plan),
      place_(inputs.place),
      files_(file_calls_from_environment(inputs.place.rank)) {
  const SaveFlags& flags = options_.save;
  if (flags.directory.empty() && flags.full.empty() && flags.adapters.empty() && flags.resume.empty()) return;
  facts_ = run_facts(inputs, graph, data);
  if (!flags.resume.empty()) {
    resumed_ = resume({.directory = flags.resume,
                       .facts = facts_,
                       .rank = place_.rank,
                       .world = place_.world,
                       .is_scaled = scaled_parameters(graph, plan_.job)},
                      graph, inputs.groups);
  }
  // The others start to save only after steps that need rank 0, so what it does here is done by then.
  if (place_.rank == 0 && !flags.directory.empty()) prepare(flags.directory);
  if (place_.rank == 0 && !flags.full.empty()) prepare_full(flags.full);
  if (place_.rank == 0 && !flags.adapters.empty()) {
    prepare_adapters(flags.adapters);
    adapter_config_ = peft_config_to_json(graph, plan_.job, base_of(options_, plan_));
  }
  if (flags.directory.empty()) return;
  saver_ = std::make_unique<Saver>(SaverOptions{.directory = flags.directory,
                                                .keep = flags.keep,
                                                .rank = place_.rank,
                                                .world = place_.world,
                                                .timeout = std::chrono::seconds(options_.timeout_seconds)},
                                   *files_, inputs.groups, plan_.job);
}

/// Before the first step: a run should not learn after the last one that it can't write there.
void RunCheckpoints::prepare_full(const std::string& directory) {
  const OpenFolder folder = OpenFolder::make(*files_, directory);
  if (folder.has("model.safetensors.index.json")) {
    throw InputError(
        fmt::format("--save-full {}: contains a model.safetensors.index.json, which would hide the new file; "
                    "name another directory",
                    printable(directory)));
  }
  if (!lock_ || !is_same(directory, options_.save.directory)) {
    full_lock_ = std::make_unique<FolderLock>(folder, "--save-full");
  }
}

void RunCheckpoints::prepare_adapters(const std::string& directory) {
  const OpenFolder folder = OpenFolder::make(*files_, directory);
  const SaveFlags& flags = options_.save;
  const bool is_locked =
      (lock_ && is_same(directory, flags.directory)) || (full_lock_ && is_same(directory, flags.full));
  if (!is_locked) adapter_lock_ = std::make_unique<FolderLock>(folder, "--save-adapters");
}

void RunCheckpoints::prepare(const std::string& directory) {
  // Made and locked before it is looked at: a second run sees no half of what the first one does.
  const OpenFolder folder = OpenFolder::make(*files_, directory);
  lock_ = std::make_unique<FolderLock>(folder, "--save");
  const std::vector<std::int64_t> steps = committed_steps(directory);
  const bool goes_on = !options_.save.resume.empty() && is_same(directory, options_.save.resume);
  if (!steps.empty() && !goes_on) {
    throw InputError(
        fmt::format("--save {}: contains checkpoints of an earlier run (step {}); continue from them with "
                    "--resume, or name another directory",
                    printable(directory), steps.back()));
  }
  remove_leftovers(*files_, folder);
  if (!steps.empty() && steps.back() > resumed_.manifest.step) {
    set_damaged_aside(*files_, folder, resumed_.manifest.step);
  }
}

void RunCheckpoints::after_step(std::int64_t step, const Trainer& trainer) {
  if (!saver_) return;
  saver_->check();
  const SaveFlags& flags = options_.save;
  const bool is_due = step == options_.train.steps || (flags.every > 0 && step % flags.every == 0);
  if (!is_due) return;
  Manifest manifest;
  manifest.step = step;
  manifest.next_row = step * plan_.job.global_batch;
  manifest.facts = facts_;
  manifest.numbers = trainer.numbers();
  saver_->save(std::move(manifest), [&](Snapshot& snapshot) { trainer.snapshot(snapshot); });
}

void RunCheckpoints::finish(const Trainer& trainer) {
  if (saver_) saver_->wait();
  const SaveFlags& flags = options_.save;
  if (flags.full.empty() && flags.adapters.empty()) return;
  trainer.save_full(*files_, {.model = flags.full,
                              .config_json = plan_.spec.config_json,
                              .adapters = flags.adapters,
                              .adapter_config = adapter_config_});
}

}  // namespace vramfit
