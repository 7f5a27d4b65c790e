#include "cli/run/tune_plans.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/numbers/median.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/run/recorded_run.h"
#include "estimator/time/calibration.h"
#include "estimator/time/recorded_runs.h"
#include "job/fields/whole_job_flags.h"
#include "planner/answer/plan_json.h"
#include "planner/search/search.h"

namespace vramfit {
namespace {

constexpr int kOutOfMemory = static_cast<int>(ExitCode::out_of_memory);

/// What trials leave out: all that reads or writes values, or that counts on the run's own number of steps.
constexpr std::array<std::string_view, 19> kNotOfTrials{
    "--plan",    "--steps",  "--warmup",    "--weights", "--adapters",    "--save",          "--save-every",
    "--keep",    "--resume", "--save-full", "--trace",   "--trace-steps", "--save-adapters", "--snapshot",
    "--metrics", "--events", "--progress",  "-o",        "--dump-state"};
constexpr std::string_view kDumps = "--dump-";

std::vector<std::string> trial_arguments(const std::vector<std::string>& of_run, const std::string& plan) {
  std::vector<std::string> arguments{"--plan", plan, "--steps", fmt::to_string(kTuneSteps), "--progress", "none"};
  for (std::size_t i = 0; i + 1 < of_run.size(); i += 2) {
    if (std::ranges::find(kNotOfTrials, of_run[i]) != kNotOfTrials.end() || of_run[i].starts_with(kDumps)) continue;
    arguments.insert(arguments.end(), {of_run[i], of_run[i + 1]});
  }
  return arguments;
}

class Tuning {
 public:
  explicit Tuning(const TuneRequest& in) : in_(in), folder_(std::make_unique<PrivateFolder>("tune")) {
    request_.spec = in.plan.spec;
    request_.job = in.plan.job;
    request_.fixed = in.plan.fixed;
    request_.cluster = in.plan.cluster;
    request_.clip = in.plan.clip;
  }

  TunedPlan run() {
    for (int number = 1; number <= in_.most; ++number) {
      const std::optional<Candidate> next = next_best(number);
      if (!next) {
        complain("vramfit", fmt::format("--tune: no further plan fits; {} tried", number - 1));
        break;
      }
      if (const int code = try_out(*next, number); code != 0) return {.exit_code = code, .path = "", .folder = {}};
    }
    if (!fastest_) throw Error(ExitCode::out_of_memory, "--tune: each of the plans that were tried ran out of memory");
    complain("vramfit", fmt::format("--tune: number {} is the fastest, and trains", fastest_->number));
    keep_results();
    return {.exit_code = 0, .path = fastest_->path, .folder = std::move(folder_)};
  }

 private:
  struct Tried {
    int number = 0;
    std::string path;
    double tokens_per_second = 0;
  };

  /// The plan that was given, if it comes of a search; then the best one that hasn't been tried.
  std::optional<Candidate> next_best(int number) {
    if (number == 1 && in_.is_planned) {
      Evaluator evaluator(request_);
      return evaluator.candidate(evaluator.timed(in_.plan.job));
    }
    return make_plan(request_).chosen;
  }

  std::string written(const Candidate& candidate, int number) const {
    Plan plan;
    plan.chosen = candidate;
    plan.why = fmt::format("number {} of the plans that vramfit run --tune tried", number);
    plan.search.configurations = 1;
    const std::string path = fmt::format("{}/plan{}.json", folder_->path(), number);
    PlanRequest asked = request_;
    asked.rejected.clear();  // they were tried, and may train as well
    write_file(path, plan_to_json(asked, plan));
    return path;
  }

  /// 0, or the exit code of ranks that failed for another reason than memory.
  int try_out(const Candidate& candidate, int number) {
    const std::string path = written(candidate, number);
    LaunchOptions launch = in_.launch;
    launch.arguments = trial_arguments(in_.launch.arguments, path);
    const RunEnd end = launch_recorded(std::move(launch), folder_->path());
    if (end.exit_code != 0 && end.exit_code != kOutOfMemory) return end.exit_code;
    const std::string what = fmt::format("--tune: {} of {}: ", number, in_.most);
    const std::string flags = printable(whole_job_flags(candidate.job, request_.cluster), 4000);
    if (end.exit_code == 0) {
      note(candidate, {number, path, 0}, end.record, what, flags);
    } else {
      complain("vramfit", fmt::format("{}out of memory: {}", what, flags));
    }
    request_.rejected.push_back({.job = candidate.job, .why = "was tried"});
    return 0;
  }

  void note(const Candidate& candidate, Tried tried, const std::string& record, const std::string& what,
            const std::string& flags) {
    const RunRecord run = run_from_json(record, "run.json");
    const double tokens = static_cast<double>(candidate.job.global_batch) * static_cast<double>(candidate.job.sequence);
    tried.tokens_per_second = tokens / measured_step_seconds(run);
    complain("vramfit", fmt::format("{}{:.0f} tokens/s, predicted {:.0f}: {}", what, tried.tokens_per_second,
                                    candidate.tokens_per_second, flags));
    shares_.push_back(
        step_share_of_run(run, request_.spec, request_.cluster, efficiency_of(request_.cluster), "run.json"));
    if (!fastest_ || tried.tokens_per_second > fastest_->tokens_per_second) fastest_ = tried;
  }

  void keep_results() {
    const std::string& output = in_.options.output;
    if (output.empty() || !names_a_file(output)) return;
    const std::string plan = file_beside(output, "tuned.plan"), calibration = file_beside(output, "calibration");
    write_file(plan, read_file(fastest_->path));
    write_file(calibration, figures_to_json({step_share()}, request_.cluster));
    complain("vramfit", fmt::format("--tune: wrote {}, and {} for --calibration", printable(plan, 4096),
                                    printable(calibration, 4096)));
  }

  CalibratedFigure step_share() const {
    const std::size_t runs = shares_.size();
    const StepShare kind = step_share_on(request_.cluster);
    return {.key = std::string(kind.name),
            .known = efficiency_of(request_.cluster).*kind.value,
            .measured = median(shares_),
            .origin = fmt::format("measured: {} plan{} of {} steps each (vramfit run --tune)", runs,
                                  runs == 1 ? "" : "s", kTuneSteps)};
  }

  const TuneRequest& in_;
  std::unique_ptr<PrivateFolder> folder_;
  PlanRequest request_;
  std::optional<Tried> fastest_;
  std::vector<double> shares_;  // step_share of each trial, or that of a card alone
};

}  // namespace

void check_can_tune(bool on_phantoms, bool replans) {
  if (on_phantoms) {
    throw InputError("--tune: nothing takes time on phantom GPUs, so no plan is faster than another there");
  }
  if (replans) throw InputError("--tune and --replan: give one; a plan that runs out of memory is left out by --tune");
}

TunedPlan tune(const TuneRequest& request) { return Tuning(request).run(); }

}  // namespace vramfit
