#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/configs/job_configs.h"
#include "cli/estimate/asked.h"
#include "cli/estimate/default_stack.h"
#include "cli/estimate/instead.h"
#include "cli/estimate/what_if.h"
#include "cli/files.h"
#include "cli/flags/calibration_files.h"
#include "cli/flags/help.h"
#include "cli/flags/job_flags.h"
#include "cli/flags/model.h"
#include "cli/format/at_peak_text.h"
#include "cli/format/estimate_text.h"
#include "cli/format/requirements_text.h"
#include "cli/format/ticker.h"
#include "cli/recipes/rehearse_stack.h"
#include "cli/recipes/stack_recipe.h"
#include "cli/run/run_effects.h"
#include "estimator/bound/margins.h"
#include "estimator/card_requirements.h"
#include "estimator/estimate.h"
#include "estimator/estimate_json.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/accelerate.h"

namespace vramfit {
namespace {

struct EstimateFlags : JobQuestion {
  std::string format = "table", rehearse = "never", python, driver;
  std::vector<std::string> what_ifs;
  bool json = false, strict = false, exact = false, at_peak = false, no_cache = false;
};

CardRequirements requirements_on(const EstimateFlags& flags, const Stack* stack, const ModelSpec& spec) {
  std::map<bool, Job> jobs;  // by whether they are on one card, on which alone a stack differs: files are read once
  const auto job_on = [&](const Cluster& cluster) {
    const bool is_one = cluster.cards() == 1;
    const auto known = jobs.find(is_one);
    if (known != jobs.end()) return known->second;
    const JobChoice choice =
        stack == nullptr ? read_job_choice(flags.job) : read_job_choice(flags.job, *stack, cluster);
    return jobs.emplace(is_one, choice.job).first->second;
  };
  Cluster any;
  if (!flags.job.confidence.empty()) set_confidence(any, flags.job.confidence);
  return card_requirements(spec, job_on, {.suggestions = false, .run = effects_of(flags)}, any.confidence);
}

/// For the usual stack, and where that has no rules for the job, for this project's engine.
CardRequirements requirements_of(const EstimateFlags& flags, const ModelSpec& spec) {
  const Stack* const stack = stack_of_flag(flags.job);
  if (names_library(flags.job)) return requirements_on(flags, stack, spec);
  std::string lacking;
  try {
    CardRequirements usual = requirements_on(flags, &stack_named(kUsualStack), spec);
    lacking = usual.one_card.lacking;
    usual.one_card.assumptions.insert(usual.one_card.assumptions.begin(), default_stack_note(""));
    if (usual.one_card.verdict != Verdict::not_modelled) return usual;
  } catch (const InputError& error) {  // of a wish that no library has, too
    lacking = error.what();
  }
  CardRequirements own = requirements_on(flags, nullptr, spec);
  own.one_card.assumptions.insert(own.one_card.assumptions.begin(), default_stack_note(lacking));
  return own;
}

/// Without --gpus: what one card needs, and which cards would do.
int run_requirements(const EstimateFlags& flags, const ModelSpec& spec, bool json) {
  const CardRequirements requirements = [&] {
    const Ticker ticker("vramfit: trying the cards of the catalog");
    return requirements_of(flags, spec);
  }();
  if (requirements.one_card.verdict == Verdict::not_modelled) throw NotModelled(requirements.one_card.why);
  write_file("-", json ? requirements_to_json(requirements)
                       : requirements_text(requirements, flags.job.model, detect_terminal()));
  return static_cast<int>(ExitCode::done);
}

bool may_rehearse(const EstimateFlags& flags) { return flags.exact || flags.rehearse == "auto"; }

/// The flags given that are for estimates and change nothing in a rehearsal.
std::vector<std::string_view> of_estimates_alone(const EstimateFlags& flags) {
  std::vector<std::string_view> given;
  for (const auto& [flag, is_given] : {std::pair{"--network", !flags.network.empty()},
                                       {"--confidence", !flags.job.confidence.empty()},
                                       {"--calibration", !flags.calibration.empty()},
                                       {"--no-clip", flags.run.no_clip},
                                       {"--save-kind", flags.run.saves()}}) {
    if (is_given) given.emplace_back(flag);
  }
  return given;
}

/// Flags of rehearsals, and flags that none has.
void check_rehearsal_flags(const EstimateFlags& flags) {
  if (flags.rehearse != "never" && flags.rehearse != "auto") {
    throw InputError(fmt::format("--rehearse {}: never or auto", printable(flags.rehearse)));
  }
  for (const auto& [flag, is_given] : {std::pair{"--python", !flags.python.empty()},
                                       {"--keep-driver", !flags.driver.empty()},
                                       {"--no-cache", flags.no_cache}}) {
    if (!is_given || may_rehearse(flags)) continue;
    throw InputError(fmt::format("{}: is for a rehearsal; give --exact or --rehearse auto, too", flag));
  }
  for (const auto& [flag, is_given] : {std::pair{"--what-if", !flags.what_ifs.empty()}, {"--at-peak", flags.at_peak}}) {
    if (!is_given || !may_rehearse(flags)) continue;
    throw InputError(fmt::format("{}: is for estimates; leave out --exact and --rehearse auto", flag));
  }
  if (!flags.exact) return;
  for (const std::string_view flag : of_estimates_alone(flags)) {
    throw InputError(fmt::format("{}: changes nothing in a rehearsal, which --exact asks for", flag));
  }
}

/// Flags that say nothing without --gpus.
void check_gpus(const EstimateFlags& flags) {
  struct Needing {
    const char* flag;
    bool is_given;
    const char* without;
  };
  if (!flags.job.gpus.empty()) return;
  for (const Needing& each : {Needing{"--network", !flags.network.empty(), "no speed is predicted"},
                              Needing{"--calibration", !flags.calibration.empty(), "no speed is predicted"},
                              Needing{"--host-memory", !flags.job.host_memory.empty(), "there are no nodes"},
                              Needing{"--stack", !flags.job.stack.empty() && stack_of_flag(flags.job)->one_gpu.empty(),
                                      "cards are asked about from one on, and for one it has no rules"},
                              Needing{"--exact", flags.exact, "there is nothing to rehearse on"},
                              Needing{"--what-if", !flags.what_ifs.empty(), "there is no single estimate"},
                              Needing{"--at-peak", flags.at_peak, "there is no single estimate"},
                              Needing{"--strict", flags.strict, "there is no verdict to be strict about"}}) {
    if (!each.is_given) continue;
    throw InputError(fmt::format("{}: needs --gpus; without it {}", each.flag, each.without));
  }
}

/// Unknown values, and flags that would change nothing beside the others.
void check_flags(const EstimateFlags& flags) {
  check_rehearsal_flags(flags);
  try {
    if (flags.format != "table" && flags.format != "json" && flags.format != "accelerate") {
      unknown_value(flags.format, {"table", "json", "accelerate"});
    }
  } catch (const InputError& error) {
    throw InputError(fmt::format("--format: {}", error.what()));
  }
  if (flags.format == "accelerate" &&
      (any_job_flag(flags.job) || flags.json || !flags.what_ifs.empty() || flags.at_peak || flags.strict ||
       !flags.network.empty() || !flags.calibration.empty() || flags.run.no_clip || flags.run.saves())) {
    throw InputError("--format accelerate: its table depends only on MODEL; give it no other flag");
  }
  check_gpus(flags);
}

/// What this project's engine would need instead of another stack, and instead of it, on one GPU, the Trainer. On
/// several, its step takes longer to walk through than the rest of an estimate.
void add_others(Estimate& result, const EstimateFlags& flags, const ModelSpec& spec, const Cluster& cluster) {
  if (!result.others.empty() || (result.stack == "vramfit" && cluster.cards() > 1)) return;
  if (has_trl(result.job) && result.job.modeling != Modeling::trl) return;  // nobody else has its loss
  if (!flags.job.unmodelled.empty()) return;  // what a file asks for beyond flags isn't known there either
  const Stack& other = stack_named(result.stack == "vramfit" ? "transformers" : "vramfit");
  if (cluster.is_cpu() || defaults_of(other, cluster).empty()) return;
  try {
    Instead instead = instead_on(flags.job, other, result.job, cluster);
    const Estimate need = estimate(spec, instead.choice.job, cluster, {.suggestions = false, .run = effects_of(flags)});
    if (need.verdict == Verdict::not_modelled) return;
    result.others.push_back({.stack = need.stack,
                             .total = worst_rank(need).total,
                             .verdict = need.verdict,
                             .answered_by = instead.flags + instead.without});
  } catch (const InputError&) {  // what was set contradicts the other stack
  }
}

/// As an estimate's, where the script ran through or out of memory.
int exit_code_of(RehearsalVerdict verdict, bool strict) {
  if (verdict == RehearsalVerdict::fits) return exit_code_of(Verdict::fits, strict);
  if (verdict == RehearsalVerdict::at_risk) return exit_code_of(Verdict::at_risk, strict);
  if (verdict == RehearsalVerdict::does_not_fit) return exit_code_of(Verdict::does_not_fit, strict);
  return static_cast<int>(ExitCode::failed);
}

/// Where the recipe lacks what was set, an estimate may have it.
StackRecipe recipe_to_rehearse(const EstimateFlags& flags, const Asked& asked, const ModelSpec& spec) {
  try {
    return recipe_of(asked, spec);
  } catch (const NotModelled& error) {
    constexpr bool kSuggestions = false;
    if (estimate_of(on_usual_stack(flags), asked, spec, kSuggestions).verdict == Verdict::not_modelled) throw;
    throw NotModelled(error.feature_name + " (without --exact it is estimated)");
  }
}

int rehearse(const EstimateFlags& flags, const Asked& asked, const ModelSpec& spec, bool json) {
  if (asked.stack->name == "vramfit") {
    throw InputError("--exact: rehearses a library's script; say which: --stack transformers, trl, accelerate, ...");
  }
  if (asked.cluster.is_cpu()) {
    throw InputError(fmt::format("--exact: rehearses on simulated GPUs; --gpus {} are CPU ranks", asked.cluster.text));
  }
  require_modelled(flags.job);
  const StackRecipe recipe = recipe_to_rehearse(flags, asked, spec);
  if (!flags.driver.empty()) {
    const Recipe script = find_recipe(recipe.recipe);
    write_file(flags.driver, recipe_script(script, recipe_values(script, recipe.values), flags.job.model));
  }
  StackQuestion question{.recipe = recipe,
                         .model = flags.job.model,
                         .python = flags.python,
                         .cluster = asked.cluster,
                         .asked = fmt::format("--stack {}: {}, rehearsed: {}", asked.stack->name, asked.stack->what,
                                              command_of(recipe, flags.job.model, asked.cluster)),
                         .may_be_kept = !flags.no_cache};
  if (!flags.driver.empty()) {
    question.driver = fmt::format("--keep-driver: {} is the script", printable(flags.driver));
  }
  const ExactAnswer answer = rehearse_stack(question);
  write_file("-", json ? answer.json : answer.text);
  return exit_code_of(answer.verdict, flags.strict);
}

/// For --rehearse auto: what to rehearse where the library that was asked for, or the usual one, has no rules for the
/// job and a recipe has what was set.
std::optional<Asked> asked_of_recipe(const EstimateFlags& flags, const Estimate& result, const ModelSpec& spec) {
  const bool is_lacking =
      result.verdict == Verdict::not_modelled ||
      std::ranges::any_of(result.others, [](const StackNeed& other) { return other.verdict == Verdict::not_modelled; });
  if (!is_lacking || result.cluster.is_cpu() || !flags.job.unmodelled.empty()) return std::nullopt;
  const Asked asked = read_asked(on_usual_stack(flags));
  return recipe_command(asked, spec, flags.job.model).empty() ? std::nullopt : std::optional(asked);
}

/// The estimate, and what else was asked for.
std::string answer_text(const EstimateFlags& flags, const Answer& answer, const ModelSpec& spec, bool json) {
  const Estimate& result = answer.estimate;
  const std::vector<WhatIf> changed = what_ifs(answer.question, flags.what_ifs, spec, result.job);
  std::optional<AtPeak> held;
  if (flags.at_peak && !result.ranks.empty()) held = at_peak(spec, result, effects_of(flags));
  if (json) return estimate_to_json(result, {.what_ifs = changed, .at_peak = held ? &*held : nullptr});
  const Terminal terminal = detect_terminal();
  return estimate_text(result, terminal) + (held ? at_peak_text(*held, terminal) : "") +
         what_if_text(result, changed, terminal);
}

int run_estimate(const EstimateFlags& flags) {
  check_flags(flags);
  const ModelSpec spec = read_model(flags.job.model);
  if (flags.format == "accelerate") {
    write_file("-", accelerate_text(spec, spec.name));
    return static_cast<int>(ExitCode::done);
  }
  const bool json = flags.json || flags.format == "json";
  if (flags.job.gpus.empty()) return run_requirements(flags, spec, json);
  if (flags.exact) return rehearse(flags, read_asked(on_usual_stack(flags)), spec, json);
  Answer answer = answer_of(flags, spec);
  Estimate& result = answer.estimate;
  result.assumptions.insert(result.assumptions.begin(), flags.job.assumed.begin(), flags.job.assumed.end());
  if (flags.rehearse == "auto") {
    if (const std::optional<Asked> lacking = asked_of_recipe(flags, result, spec)) {
      for (const std::string_view flag : of_estimates_alone(flags)) {
        std::fputs(
            fmt::format("vramfit: warning: {}: changes nothing here, as the job is rehearsed, not estimated\n", flag)
                .c_str(),
            stderr);
      }
      return rehearse(flags, *lacking, spec, json);
    }
  }
  add_others(result, flags, spec, answer.asked.cluster);
  write_file("-", answer_text(flags, answer, spec, json));
  if (result.verdict == Verdict::at_risk) {
    std::fprintf(
        stderr, "vramfit: warning: at risk: %s%s\n",
        worst_rank(result).gives_back ? "fits only by releasing cached memory" : "the upper bound does not fit",
        flags.strict ? "" : " (--strict makes this a failure)");
  }
  return exit_code_of(result.verdict, flags.strict);
}

}  // namespace

void add_estimate(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<EstimateFlags>();
  add_job_flags(command, flags->job);
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/estimate.schema.json)")
      ->group(kOutputFlags);
  command
      .add_option("--format", flags->format,
                  "How to print; accelerate: as the table of accelerate estimate-memory. Default: table")
      ->type_name("table|json|accelerate")
      ->group(kOutputFlags);
  command.add_option("--network", flags->network, kNetworkHelp)->type_name("SPEED")->group(kCommonFlags);
  add_calibration_flag(command, flags->calibration);
  command
      .add_option(
          "--what-if", flags->what_ifs,
          "Also show the job with a field changed (micro_batch=4, gpus=8xL4): memory and time beside the job's own. "
          "Several fields in quotes (\"micro_batch=4 checkpointing=full\") change together; may be repeated")
      ->type_name("KEY=VALUE")
      ->group(kCommonFlags)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command
      .add_flag("--at-peak", flags->at_peak,
                "Show what is in memory at the peak: modules as a tree, and the largest tensors")
      ->group(kOutputFlags);
  command.add_flag("--strict", flags->strict, "Exit with code 3 also if the verdict is at_risk")->group(kOutputFlags);
  add_confidence_flag(command, flags->job);
  add_run_effects(command, flags->run);
  add_stack_flag(command, flags->job, kUsualByDefault);
  command
      .add_flag(
          "--exact", flags->exact,
          "Instead of estimating, rehearse a script of the stack's library, as \"vramfit rehearse --recipe\" does")
      ->group(kRecipeFlags);
  command
      .add_option("--rehearse", flags->rehearse,
                  "auto: rehearse, as --exact does, if there are no rules for the job. Default: never")
      ->type_name("never|auto")
      ->group(kRecipeFlags);
  command.add_option("--python", flags->python, "The Python that has the library. Default: python in PATH")
      ->type_name("PATH")
      ->group(kRecipeFlags);
  command
      .add_flag("--no-cache", flags->no_cache,
                "Rehearse even if the same job was rehearsed before, and don't keep the result (docs/stacks.md)")
      ->group(kRecipeFlags);
  command.add_option("--keep-driver", flags->driver, "Write the script that is rehearsed to FILE")
      ->type_name("FILE")
      ->group(kRecipeFlags);
  command.callback([flags, &exit_code] {
    apply_configs(flags->job);
    exit_code = run_estimate(*flags);
  });
}

}  // namespace vramfit
