// The plan against the whole space, timed and tried one by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/loss/default_loss.h"
#include "job/loss/loss_options.h"
#include "tests/planner/drawn_requests.h"

namespace vramfit {

using testing::all_timed;
using testing::capacity_for;
using testing::draw;
using testing::Drawn;
using testing::request_of;
using testing::shrunk;
using testing::text_of;

namespace {

constexpr std::size_t kMostConfigurations = 400;  // larger spaces take too long to try out

/// What a search of the drawn space says, and what looking at all of it says; empty if the job can't be or isn't
/// modelled.
struct Answers {
  std::string searched, found;
  std::int64_t configurations = 0, listed = 0;
  bool has_fewer_chunks = false;  // than by default, or full loss in place of chunks
};

bool has_fewer_chunks(const PlanRequest& request, const Job& job) {
  Job usual = job;
  set_default_loss(usual, request.spec, request.cluster);
  return loss_options(job).chunks < loss_options(usual).chunks && !request.is_fixed("loss");
}

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
      answers.has_fewer_chunks = has_fewer_chunks(request, option.job);
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

/// How a cluster gets better.
struct Better {
  std::string_view what;
  double factor = 1;
};

Better drawn_better(std::mt19937_64& random) {
  constexpr std::array<std::string_view, 5> kWhat{"memory", "memory bandwidth", "link", "network", "FLOPs"};
  const double factor = 1 + static_cast<double>(random() % 100) / 50;
  return {.what = kWhat[random() % kWhat.size()], .factor = factor};
}

Cluster improved(Cluster cluster, const Better& better) {
  Card& card = cluster.card;
  if (better.what == "memory") {
    card.memory = Bytes{static_cast<std::int64_t>(static_cast<double>(card.memory.n) * better.factor)};
  }
  if (better.what == "memory bandwidth") card.memory_bandwidth *= better.factor;
  if (better.what == "link") card.link_bandwidth *= better.factor;
  if (better.what == "network") cluster.network_bandwidth *= better.factor;
  if (better.what == "FLOPs") card.bf16_flops *= better.factor, card.fp32_flops *= better.factor;
  return cluster;
}

struct Speeds {
  double before = 0, after = 0;  // tokens/s; 0 without a plan
};

double speed_of(const PlanRequest& request) {
  const Plan plan = make_plan(request);
  return plan.chosen ? plan.chosen->tokens_per_second : 0;
}

/// Of the plans before and after the cluster got better; empty where nothing is modelled, or the space is too large.
std::optional<Speeds> speeds_of(const Drawn& drawn, const Better& better) {
  try {
    PlanRequest request = request_of(drawn);
    const std::vector<Job> jobs = enumerate_jobs(request);
    if (jobs.size() > kMostConfigurations) return std::nullopt;
    request.cluster.card.memory = capacity_for(request, jobs, drawn.capacity);
    Speeds speeds{.before = speed_of(request)};
    request.cluster = improved(request.cluster, better);
    speeds.after = speed_of(request);
    return speeds;
  } catch (const Error&) {
    return std::nullopt;  // a contradiction
  }
}

}  // namespace

namespace {

/// How many of the compared spaces have what.
struct Compared {
  int spaces = 0, planned = 0, updates_in_backward = 0, fewer_chunks = 0;
};

/// Compares one space; false if it isn't alike, which is checked of the fewest settings.
bool compare(const Drawn& drawn, Compared& compared) {
  const std::optional<Answers> answers = answers_to(drawn);
  if (!answers) return true;
  ++compared.spaces;
  compared.planned += answers->found == "none" ? 0 : 1;
  compared.updates_in_backward += answers->found.find("--optimizer-in-backward on") != std::string::npos ? 1 : 0;
  compared.fewer_chunks += answers->has_fewer_chunks ? 1 : 0;
  if (answers->searched == answers->found && answers->configurations == answers->listed) return true;
  const Drawn least = shrunk(drawn, agrees);
  const Answers wrong = *answers_to(least);
  CAPTURE(text_of(least));
  CHECK(wrong.searched == wrong.found);
  CHECK(wrong.configurations == wrong.listed);
  return false;
}

}  // namespace

TEST_CASE("the plan is the fastest job that fits of all that there are, in spaces drawn at random") {
  // The 70th of the second: a late end of a reduction takes less than an early one.
  std::mt19937_64 random(13), others(14);
  Compared compared;
  while (compared.spaces < 400 && compare(draw(compared.spaces < 300 ? random : others), compared)) continue;
  MESSAGE(compared.planned, " of ", compared.spaces, " have a plan");
  CHECK(compared.planned > 100);
  CHECK(compared.updates_in_backward > 0);
  CHECK(compared.planned < compared.spaces);
}

TEST_CASE("likewise where the loss has chunks by default") {
  std::mt19937_64 random(15);
  Compared compared;
  bool is_alike = true;
  while (is_alike && compared.spaces < 60) {
    Drawn drawn = draw(random);
    drawn.sequence = 2048;
    is_alike = compare(drawn, compared);
  }
  MESSAGE(compared.fewer_chunks, " of ", compared.planned, " plans have fewer chunks than by default");
  CHECK(compared.planned > 20);
  CHECK(compared.fewer_chunks > 3);
}

TEST_CASE("more memory, bandwidth or FLOPs never make the plan slower, in spaces drawn at random") {
  std::mt19937_64 random(17);
  for (int compared = 0; compared < 120;) {
    const Drawn drawn = draw(random);
    const Better better = drawn_better(random);
    const std::optional<Speeds> speeds = speeds_of(drawn, better);
    if (!speeds) continue;
    ++compared;
    if (speeds->after >= speeds->before) continue;
    const Drawn least = shrunk(drawn, [&](const Drawn& less) {
      const std::optional<Speeds> of_less = speeds_of(less, better);
      return !of_less || of_less->after >= of_less->before;
    });
    const Speeds wrong = *speeds_of(least, better);
    CAPTURE(text_of(least));
    CAPTURE(better.what);
    CAPTURE(better.factor);
    CHECK(wrong.after >= wrong.before);
    break;
  }
}

}  // namespace vramfit
