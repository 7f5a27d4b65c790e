// The plan against the whole space, timed and tried one by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::all_timed;
using testing::cpu_ranks;
using testing::fix;

namespace {

constexpr std::size_t kMostConfigurations = 400;  // larger spaces take too long to try out

using Setting = std::pair<std::string, std::string>;

/// What a search may find set, and the space that is left open. Kept as a list, so that it can be shrunk.
struct Drawn {
  std::string model;
  int cluster = 0;
  std::int64_t rows = 8;       // of the global batch
  std::int64_t capacity = 50;  // percent of the space that fits, about; below 15 nearly nothing does
  bool clip = true;            // whether gradients are clipped
  std::vector<Setting> set;
};

const std::vector<std::pair<std::string, std::vector<std::string>>>& settings() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> kSettings{
      {"sharding", {"no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"}},
      {"reshard", {"default", "last-kept", "always", "2"}},
      {"wrap", {"layer", "none", "size:4000"}},
      {"micro_batch", {"1", "2"}},
      {"accumulate", {"sharded", "unsharded"}},
      {"checkpointing", {"none", "full", "every:2"}},
      {"loss", {"full", "chunked:5"}},
      {"reshard_head", {"on", "off"}},
      {"prefetch", {"backward=pre,forward=1,limit=0", "backward=none,forward=0,limit=0"}},
      {"reduce_finish", {"early", "end"}},
      {"precision", {"fp32", "bf16-mixed", "bf16-pure"}},
      {"optimizer", {"adamw", "sgd"}},
      {"freeze", {"layers:0-0", "embeddings", "*.mlp.*"}},
      {"gradient_mask", {"keep:0.5"}}};
  return kSettings;
}

std::vector<Cluster> clusters() {
  return {cpu_ranks(2, kGiB),
          parse_cluster("2x2xRTX3090"),
          parse_cluster("1xH100-80GB"),
          parse_cluster("4xA100-40GB"),
          parse_cluster("1xH100-80GB,host=64GiB"),
          parse_cluster("2xA100-40GB,host=1MB")};
}

Drawn draw(std::mt19937_64& random) {
  const std::vector<std::string>& models = testing::small_models();
  Drawn drawn{.model = models[random() % models.size()],
              .cluster = static_cast<int>(random() % clusters().size()),
              .rows = std::int64_t{4} << (random() % 3),
              .capacity = static_cast<std::int64_t>(random() % 101),
              .clip = random() % 3 > 0,
              .set = {}};
  for (const auto& [name, values] : settings()) {
    const bool is_of_space = name != "precision" && name != "optimizer" && name != "freeze" && name != "gradient_mask";
    if (random() % 10 < (is_of_space ? 3U : 8U)) continue;
    drawn.set.emplace_back(name, values[random() % values.size()]);
  }
  return drawn;
}

PlanRequest request_of(const Drawn& drawn) {
  PlanRequest request = testing::request_for(drawn.model, clusters()[static_cast<std::size_t>(drawn.cluster)]);
  request.job.global_batch = drawn.rows;
  request.clip = drawn.clip;
  for (const auto& [name, value] : drawn.set) fix(request, name, value);
  std::vector<std::string> notes;
  request.job = resolve_job(request.job, request.spec, request.cluster, notes);
  return request;
}

std::string text_of(const Drawn& drawn) {
  std::string text =
      fmt::format("{} on {}, {} rows, {} %{}", drawn.model, clusters()[static_cast<std::size_t>(drawn.cluster)].text,
                  drawn.rows, drawn.capacity, drawn.clip ? "" : ", no clipping");
  for (const auto& [name, value] : drawn.set) text += fmt::format(" {}={}", name, value);
  return text;
}

/// A card that holds about `percent` of the jobs, by what a sample of them needs.
Bytes capacity_for(const PlanRequest& request, const std::vector<Job>& jobs, std::int64_t percent) {
  Evaluator evaluator(request);
  std::vector<Bytes> needs;
  for (std::size_t i = 0; i < jobs.size(); i += jobs.size() / 8 + 1) {
    const Estimate& estimate = evaluator.estimate_of(jobs[i]);
    if (!estimate.ranks.empty()) needs.push_back(estimate.ranks.front().upper_bound);
  }
  if (needs.empty()) return kGiB;
  std::ranges::sort(needs);
  const Bytes need = needs[(needs.size() - 1) * static_cast<std::size_t>(percent) / 100];
  return percent < 15 ? Bytes{need.n - need.n / 100} : need;
}

/// What a search of the drawn space says, and what looking at all of it says; empty if the job can't be or isn't
/// modelled.
struct Answers {
  std::string searched, found;
  std::int64_t configurations = 0, listed = 0;
};

std::optional<Answers> answers_to(const Drawn& drawn) {
  try {
    PlanRequest request = request_of(drawn);
    const std::vector<Job> jobs = enumerate_jobs(request);
    if (jobs.size() > kMostConfigurations) return std::nullopt;
    request.cluster.card.memory = capacity_for(request, jobs, drawn.capacity);
    Evaluator evaluator(request);
    Answers answers{.searched = "none", .found = "none", .listed = static_cast<std::int64_t>(jobs.size())};
    bool is_modelled = false;
    for (const Option& option : all_timed(evaluator, jobs)) {
      const Trial& trial = evaluator.trial_of(option.job);
      is_modelled = is_modelled || trial.is_modelled;
      if (!trial.fits) continue;
      answers.found = fmt::format("{:.17g}: {}", option.tokens_per_second, job_as_flags(option.job, unresolved_job()));
      break;
    }
    if (!is_modelled) return std::nullopt;
    const Plan plan = make_plan(request);
    answers.configurations = plan.search.configurations;
    if (plan.chosen) {
      answers.searched =
          fmt::format("{:.17g}: {}", plan.chosen->tokens_per_second, job_as_flags(plan.chosen->job, unresolved_job()));
    }
    return answers;
  } catch (const Error&) {
    return std::nullopt;  // a contradiction, or nothing is modelled
  }
}

bool agrees(const Drawn& drawn) {
  const std::optional<Answers> answers = answers_to(drawn);
  return !answers || (answers->searched == answers->found && answers->configurations == answers->listed);
}

/// The fewest settings that still disagree.
Drawn shrunk(Drawn drawn) {
  for (std::size_t i = 0; i < drawn.set.size();) {
    Drawn less = drawn;
    less.set.erase(less.set.begin() + static_cast<std::ptrdiff_t>(i));
    agrees(less) ? ++i : (drawn = less, i = 0);
  }
  return drawn;
}

}  // namespace

TEST_CASE("the plan is the fastest job that fits of all that there are, in spaces drawn at random") {
  std::mt19937_64 random(13);
  int compared = 0, planned = 0, updates_in_backward = 0;
  while (compared < 300) {
    const Drawn drawn = draw(random);
    const std::optional<Answers> answers = answers_to(drawn);
    if (!answers) continue;
    ++compared;
    planned += answers->found == "none" ? 0 : 1;
    updates_in_backward += answers->found.find("--optimizer-in-backward on") != std::string::npos ? 1 : 0;
    if (answers->searched == answers->found && answers->configurations == answers->listed) continue;
    const Drawn least = shrunk(drawn);
    const Answers wrong = *answers_to(least);
    CAPTURE(text_of(least));
    CHECK(wrong.searched == wrong.found);
    CHECK(wrong.configurations == wrong.listed);
    break;
  }
  MESSAGE(planned, " of ", compared, " have a plan");
  CHECK(planned > 100);
  CHECK(updates_in_backward > 0);
  CHECK(planned < compared);
}

TEST_CASE("more memory, bandwidth or FLOPs never make the plan slower, in spaces drawn at random") {
  std::mt19937_64 random(17);
  int compared = 0;
  while (compared < 60) {
    const Drawn drawn = draw(random);
    try {
      PlanRequest request = request_of(drawn);
      const std::vector<Job> jobs = enumerate_jobs(request);
      if (jobs.size() > kMostConfigurations) continue;
      request.cluster.card.memory = capacity_for(request, jobs, drawn.capacity);
      const Plan before = make_plan(request);
      Card& card = request.cluster.card;
      const double more = 1 + static_cast<double>(random() % 100) / 50;
      const std::string what[] = {"memory", "memory bandwidth", "link", "network", "FLOPs"};
      const std::size_t changed = random() % std::size(what);
      if (changed == 0) card.memory = Bytes{static_cast<std::int64_t>(static_cast<double>(card.memory.n) * more)};
      if (changed == 1) card.memory_bandwidth *= more;
      if (changed == 2) card.link_bandwidth *= more;
      if (changed == 3) request.cluster.network_bandwidth *= more;
      if (changed == 4) card.bf16_flops *= more, card.fp32_flops *= more;
      const Plan after = make_plan(request);
      CAPTURE(text_of(drawn));
      CAPTURE(what[changed]);
      CAPTURE(more);
      CHECK((after.chosen ? after.chosen->tokens_per_second : 0) >=
            (before.chosen ? before.chosen->tokens_per_second : 0));
      ++compared;
    } catch (const Error&) {
      continue;  // a contradiction, or nothing is modelled
    }
  }
}

}  // namespace vramfit
