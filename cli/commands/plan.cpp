#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/conflict.h"
#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/configs/job_configs.h"
#include "cli/estimate/asked.h"
#include "cli/files.h"
#include "cli/flags/calibration_files.h"
#include "cli/flags/help.h"
#include "cli/flags/job_flags.h"
#include "cli/flags/model.h"
#include "cli/format/answer_text.h"
#include "cli/format/ticker.h"
#include "cli/run/verify_plan.h"
#include "estimator/bound/margins.h"
#include "estimator/changes/result_changes.h"
#include "job/cluster/host_memory.h"
#include "job/fields/job_fields.h"
#include "job/run/rehearsal_command.h"
#include "planner/answer/largest_model.h"
#include "planner/answer/plan_json.h"
#include "planner/cost/training_cost.h"

namespace vramfit {
namespace {

constexpr std::int64_t kUsualTokens = 1'000'000'000;  // of which --objective cost tells the cost

struct PlanFlags {
  JobFlags job;
  std::vector<std::string> allow;
  std::string output, network, objective, tokens, price, largest_model, verify;
  std::vector<std::string> calibration;
  bool json = false, no_clip = false;
};

ClusterChoice read_clusters(const PlanFlags& flags, std::int64_t global_batch = 0) {
  if (flags.job.gpus.empty()) read_cluster_flag(flags.job);  // says what is missing
  ClusterChoice choice = parse_cluster_choice(flags.job.gpus, global_batch);
  for (Cluster& cluster : choice.clusters) {
    if (!flags.job.host_memory.empty()) set_host_memory(cluster, flags.job.host_memory);
    if (!flags.job.confidence.empty()) set_confidence(cluster, flags.job.confidence);
    keep_network(flags.job, cluster);
  }
  if (flags.network.empty()) return choice;
  bool is_used = false;
  for (Cluster& cluster : choice.clusters) {
    if (cluster.nodes == 1 && (is_used || &cluster != &choice.clusters.back())) continue;
    set_network(cluster, flags.network);  // refuses the last one where none has several nodes
    is_used = true;
  }
  return choice;
}

Objective read_objective(const PlanFlags& flags, const ClusterChoice& clusters) {
  if (flags.objective.empty()) return clusters.asks_how_many ? Objective::fewest_gpus : Objective::throughput;
  const Objective objective = parse_objective(flags.objective);
  if (clusters.asks_how_many && objective != Objective::fewest_gpus) {
    throw Conflict(
        fmt::format("--objective {}: --gpus auto: asks for the fewest GPUs; list the clusters to choose from",
                    objective_name(objective)));
  }
  return objective;
}

std::string_view words_of(Objective objective) {
  switch (objective) {
    case Objective::throughput:
      break;
    case Objective::cost:
      return "cheapest plan";
    case Objective::fewest_gpus:
      return "fewest GPUs";
    case Objective::longest_sequence:
      return "longest sequence";
    case Objective::largest_batch:
      return "largest batch";
    case Objective::headroom:
      return "plan with the most headroom";
  }
  return "fastest plan";
}

/// None without --calibration. Figures are of one card, whatever number of them is asked about.
std::optional<Efficiency> read_calibration(const PlanFlags& flags, const ClusterChoice& choice, const ModelSpec& spec) {
  if (flags.calibration.empty()) return std::nullopt;
  const Cluster& first = choice.clusters.front();
  for (const Cluster& cluster : choice.clusters) {
    if (cluster.card.name == first.card.name) continue;
    throw Conflict(
        fmt::format("--calibration: is of one card; --gpus has {} and {}", first.card.name, cluster.card.name));
  }
  return efficiency_by(flags.calibration, first, spec);
}

LargestModel searched(const PlanFlags& flags, const PlanRequest& request, const ClusterChoice& clusters,
                      Objective objective, const Prices& prices) {
  const Ticker ticker(fmt::format("vramfit: searching for the {}", words_of(objective)));
  if (flags.largest_model.empty()) return {.answer = best_plan(request, clusters, objective, prices), .larger = {}};
  return plan_largest(request, models_of_family(flags.largest_model), clusters, objective, prices);
}

int write_answer(const PlanFlags& flags, const LargestModel& largest, std::optional<std::int64_t> tokens) {
  const PlanAnswer& answer = largest.answer;
  const bool has_plan = answer.tried[answer.best].has_plan();
  const auto json = [&] { return answer_to_json(answer, tokens, largest.larger); };
  if (has_plan && !flags.output.empty()) write_file(flags.output, json());
  if (flags.json) {
    if (!is_stdout(flags.output)) write_file("-", json());
  } else if (!is_stdout(flags.output)) {
    write_file("-", answer_text(answer, tokens, largest.larger, detect_terminal()));
  }
  if (has_plan && !flags.output.empty() && !is_stdout(flags.output)) {
    complain("vramfit", "plan written to " + printable(flags.output, 4096));
  }
  return static_cast<int>(has_plan ? ExitCode::done : ExitCode::no_plan);
}

/// What was set, on the first cluster that the stack has rules for; the others are refused one by one.
JobChoice first_job(const JobFlags& flags, const ClusterChoice& clusters) {
  for (const Cluster& cluster : clusters.clusters) {
    try {
      return read_job_choice_on_stack(flags, cluster);
    } catch (const NotModelled&) {  // another cluster may do
    } catch (const Conflict&) {
    }
  }
  return read_job_choice_on_stack(flags, clusters.clusters.back());
}

/// Whether what was typed can be a job of the stack, and not of another by that name, on one of the clusters at least.
bool can_be_of(const Stack& stack, JobFlags flags, const ClusterChoice& clusters) {
  flags.stack = stack.name;
  try {
    return &stack_of(first_job(flags, clusters).job) == &stack;
  } catch (const Error&) {
    return false;
  }
}

/// A runtime of PyTorch's alone doesn't say whose model code runs, on which memory depends: it is transformers', as for
/// estimates, and the other libraries that have the runtime are named.
void choose_stack(JobFlags& flags, const ClusterChoice& clusters) {
  if (!flags.stack.empty()) return;
  const JobChoice choice = read_job_choice(flags);
  const auto is_set = [&](std::string_view name) {
    return std::ranges::find(choice.fixed, name) != choice.fixed.end();
  };
  if (choice.job.runtime == Runtime::vramfit || !is_set("runtime") || is_set("modeling")) return;
  const std::string_view usual = choice.job.runtime == Runtime::deepspeed ? "deepspeed" : "transformers";
  if (!can_be_of(stack_named(usual), flags, clusters)) return;
  std::vector<std::string_view> others;
  for (const Stack& stack : stacks()) {
    if (stack.name != usual && can_be_of(stack, flags, clusters)) others.push_back(stack.name);
  }
  complain("vramfit",
           fmt::format("--runtime {} is planned for --stack {}{}{}", job_field_named("runtime").get(choice.job), usual,
                       others.empty() ? "" : "; other libraries have it, too: --stack ", fmt::join(others, ", ")));
  flags.stack = usual;
}

/// An example of each: "precision:bf16-pure, optimizer, ".
std::string kinds_of_change() {
  std::string kinds;
  for (const ResultChange& kind : result_changes()) kinds += fmt::format("{}, ", kind.example);
  return kinds;
}

int run_plan(PlanFlags& flags) {
  const Allowed allowed = parse_allowed(fmt::format("{}", fmt::join(flags.allow, ",")));
  ClusterChoice clusters = read_clusters(flags);
  choose_stack(flags.job, clusters);
  const JobChoice choice = first_job(flags.job, clusters);
  if (clusters.asks_how_many && std::ranges::find(choice.fixed, "global_batch") != choice.fixed.end()) {
    clusters = read_clusters(flags, choice.job.global_batch);
  }
  const Objective objective = read_objective(flags, clusters);
  const Prices prices = flags.price.empty() ? Prices() : Prices(flags.price);
  prices.require_any_of(clusters.clusters);
  std::optional<std::int64_t> tokens;
  if (!flags.tokens.empty()) tokens = parse_tokens(flags.tokens);
  if (!tokens && objective == Objective::cost) tokens = kUsualTokens;
  if (!flags.price.empty() && !tokens) {
    throw InputError("--price: changes nothing without --tokens or --objective cost");
  }
  if (!flags.largest_model.empty() && !flags.job.model.empty()) {
    throw InputError("--largest-model chooses the model; leave out MODEL");
  }
  PlanRequest request{.spec = flags.largest_model.empty() ? read_model(flags.job.model) : ModelSpec{},
                      .job = choice.job,
                      .fixed = choice.fixed,
                      .cluster = clusters.clusters.front(),
                      .allowed = allowed,
                      .clip = !flags.no_clip && flags.job.clips};
  request.job_on = [&](const Cluster& cluster) {
    JobChoice there = read_job_choice_on_stack(flags.job, cluster);
    return SetJob{.job = std::move(there.job), .fixed = std::move(there.fixed)};
  };
  request.efficiency = read_calibration(flags, clusters, request.spec);
  check_output("-o", flags.output);
  int rehearsals = 0;
  if (!flags.verify.empty()) {
    rehearsals = parse_verify(flags.verify);
    check_can_verify(request, clusters);
  }
  LargestModel largest = searched(flags, request, clusters, objective, prices);
  if (rehearsals > 0) verify_on_phantoms(largest.answer.tried[largest.answer.best], rehearsals);
  return write_answer(flags, largest, tokens);
}

/// Whether a plan for transformers' Trainer has rules for what one for this project's engine has none for.
bool has_trainer_rules(const PlanFlags& flags, const Asked& asked, const ModelSpec& spec) {
  if (asked.stack->name != "vramfit" || asked.cluster.is_cpu()) return false;
  const JobChoice choice = read_job_choice(flags.job, stack_named("transformers"), asked.cluster);
  return estimate(spec, choice.job, asked.cluster, {.suggestions = false}).verdict != Verdict::not_modelled;
}

/// The rehearsal of a recipe for one configuration of the job; "" where no recipe is that job's, as where the script of
/// a configuration has what isn't modelled. Throws Error.
std::string recipe_hint(const PlanFlags& flags, const Asked& asked, std::string_view verb) {
  const ModelSpec spec = read_model(flags.job.model);
  if (!flags.job.unmodelled.empty()) return "";
  if (has_trainer_rules(flags, asked, spec))
    return "; for transformers' Trainer it can be planned: --stack transformers";
  const bool is_own = asked.stack->name == "vramfit";
  const std::string command =
      is_own ? trainer_command(asked, spec, flags.job.model) : recipe_command(asked, spec, flags.job.model);
  if (command.empty()) return "";
  return fmt::format("; a rehearsal of one configuration{} {}: {}", is_own ? " with transformers' Trainer" : "", verb,
                     command);
}

/// What answers where a plan has no rules: a plan for another library, or a rehearsal of one configuration on the first
/// of the clusters, by a recipe or of the user's own script, which shows how it fails where the library itself does.
/// CPU ranks have none. `says_command`: what isn't modelled was said with the command for the user's own script.
std::string rehearsal_hint(const PlanFlags& flags, bool fails, bool says_command) {
  const char* const verb = fails ? "shows it" : "answers";
  try {
    JobFlags on_first = flags.job;
    const Cluster cluster = parse_cluster_choice(flags.job.gpus).clusters.front();
    if (cluster.is_cpu()) return "";
    on_first.gpus = cluster.text;
    const std::string own = own_rehearsal(flags.job, cluster);
    if (!own.empty()) return fmt::format("; a rehearsal of one configuration {}: {}", verb, own);
    std::string hint;
    try {
      hint = recipe_hint(flags, read_asked({.job = on_first, .network = {}, .calibration = {}, .run = {}}), verb);
    } catch (const Error&) {  // no recipe can be asked for
    }
    if (!hint.empty() || says_command) return hint;
    return fmt::format("; a rehearsal of your own script {}: {}", verb, rehearsal_of(cluster));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

void add_plan(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<PlanFlags>();
  add_job_flags(command, flags->job);
  add_stack_flag(command, flags->job, kOwnByDefault);
  command
      .add_option("--allow", flags->allow,
                  fmt::format("Changes of the training result that the search may use; may be repeated: {}any",
                              kinds_of_change()))
      ->type_name("KIND[:VALUE],...")
      ->group(kCommonFlags)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command.add_option("--network", flags->network, kNetworkHelp)->type_name("SPEED")->group(kCommonFlags);
  add_calibration_flag(command, flags->calibration);
  command
      .add_option("--objective", flags->objective,
                  "What is best: throughput (default), cost, fewest-gpus, longest-sequence, largest-batch or headroom. "
                  "To choose from several clusters: --gpus 4xRTX4090,1xH100-80GB; to find how many GPUs are needed: "
                  "--gpus auto:H100-80GB")
      ->type_name("NAME")
      ->group(kCommonFlags);
  command
      .add_option(
          "--largest-model", flags->largest_model,
          "Instead of MODEL: plan for the largest model of a family (llama, qwen3, ...) in the catalog that fits")
      ->type_name("FAMILY")
      ->group(kCommonFlags);
  command
      .add_option("--tokens", flags->tokens, "Show the hours and cost of training on this many tokens: 15B, 300M, 1.5T")
      ->type_name("COUNT")
      ->group(kCommonFlags);
  command
      .add_option("--price", flags->price,
                  "Price of a GPU per hour: 2.5/h, or H100-80GB=2.5/h,RTX4090=0.4/h. Default: configs/prices.json")
      ->type_name("PRICE")
      ->group(kCommonFlags);
  command
      .add_option(
          "--verify", flags->verify,
          "Try the plan on phantom GPUs first, and the next best one if it fails, at most K plans. Default of K: 3")
      ->type_name("phantom[:K]")
      ->group(kCommonFlags);
  command.add_option("-o,--output", flags->output, "Write the plan; - is stdout")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_flag("--json", flags->json, "Print the plan as JSON (configs/schemas/plan.schema.json)")
      ->group(kOutputFlags);
  add_confidence_flag(command, flags->job);
  command.add_flag("--no-clip", flags->no_clip, "No gradient clipping in the step")->group(kMemoryFlags);
  command.callback([flags, &exit_code] {
    try {
      apply_configs(flags->job);
      require_modelled(flags->job);
      exit_code = run_plan(*flags);
    } catch (const Conflict& conflict) {
      throw Error(ExitCode::no_plan, conflict.what());
    } catch (const Excluded& excluded) {
      throw Error(ExitCode::no_plan, excluded.what());
    } catch (const NotModelled& feature) {
      const bool fails = dynamic_cast<const LibraryFails*>(&feature) != nullptr;
      const bool says_command = feature.feature_name.find("vramfit rehearse --gpus") != std::string::npos;
      throw NotModelled(feature.feature_name + rehearsal_hint(*flags, fails, says_command));
    }
  });
}

}  // namespace vramfit
