#include "planner/objective.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "planner/search/any_fits.h"
#include "planner/search/search.h"

namespace vramfit {

namespace {

constexpr std::array<std::pair<Objective, std::string_view>, 6> kNames{{
    {Objective::throughput, "throughput"},
    {Objective::cost, "cost"},
    {Objective::fewest_gpus, "fewest-gpus"},
    {Objective::longest_sequence, "longest-sequence"},
    {Objective::largest_batch, "largest-batch"},
    {Objective::headroom, "headroom"},
}};

constexpr std::int64_t kMostSequence = std::int64_t{1} << 24;    // where a model has no limit of its own
constexpr std::int64_t kMostMicroBatch = std::int64_t{1} << 16;  // far above what any GPU holds

using Values = std::vector<std::pair<std::string, std::int64_t>>;  // of fields, by name

void set_fields(Job& job, std::vector<std::string>& fixed, const Values& values) {
  for (const auto& [name, value] : values) {
    set_job_field(job, job_field_named(name), fmt::to_string(value), name);
    fixed.push_back(name);
  }
}

/// The request with what an objective decides, on other clusters, too.
PlanRequest decided(const PlanRequest& request, const Values& values) {
  PlanRequest changed = request;
  set_fields(changed.job, changed.fixed, values);
  for (const auto& [name, value] : values) changed.decided.push_back(name);
  if (!request.job_on) return changed;
  changed.job_on = [job_on = request.job_on, values](const Cluster& cluster) {
    SetJob set = job_on(cluster);
    set_fields(set.job, set.fixed, values);
    return set;
  };
  return changed;
}

void refuse_if_set(const PlanRequest& request, Objective objective, const std::vector<std::string>& fields) {
  for (const std::string& field : fields) {
    if (!request.is_fixed(field)) continue;
    throw Conflict(fmt::format("--objective {} decides {}, which is set; leave out one of them",
                               objective_name(objective), flag_of(job_field_named(field))));
  }
}

/// `thrown` is an Error, as it was thrown.
ClusterPlan refused(const PlanRequest& request, const Error& error, std::exception_ptr thrown) {
  return {.request = request, .plan = {}, .error = std::move(thrown), .refusal = error.what(), .price = {}};
}

ClusterPlan plan_on(const PlanRequest& request) {
  try {
    return {.request = request, .plan = make_plan(request), .error = {}, .refusal = {}, .price = {}};
  } catch (const Error& error) {
    return refused(request, error, std::current_exception());
  }
}

/// Whether the job can be on the cluster at all: its batch divides among the ranks, its dtypes are supported.
bool can_be_on(const PlanRequest& request, const Cluster& cluster) {
  try {
    std::vector<std::string> notes;
    resolve_job(request.on(cluster).job, request.spec, cluster, notes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Calls `works` with numbers from 0 on, doubling, then halving; returns the greatest below `end` that worked, taking
/// it that whatever is less than one that works does too. -1: not even 0 does.
std::int64_t greatest(std::int64_t end, const std::function<bool(std::int64_t)>& works) {
  std::int64_t good = -1, bad = 0;
  while (bad < end && works(bad)) {
    good = bad;
    bad = 2 * bad + 1;
  }
  bad = std::min(bad, end);
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (works(middle) ? good : bad) = middle;
  }
  return good;
}

bool has_plan(const PlanRequest& request) {
  try {
    return any_fits(request);
  } catch (const Error&) {
    return false;
  }
}

/// The plan for the greatest of `step`, 2 step, ... `most` for which there is one; without any, that for `step`.
ClusterPlan with_greatest(const PlanRequest& request, std::int64_t step, std::int64_t most,
                          const std::function<Values(std::int64_t)>& values) {
  const auto with = [&](std::int64_t index) { return decided(request, values(std::min(most, (index + 1) * step))); };
  const std::int64_t index =
      greatest(std::max<std::int64_t>(1, most / step), [&](std::int64_t i) { return has_plan(with(i)); });
  PlanRequest found = with(std::max<std::int64_t>(index, 0));
  if (index >= 0) found.names_other_clusters = false;  // what is longest elsewhere isn't looked for
  return plan_on(found);
}

ClusterPlan plan_for(const PlanRequest& request, Objective objective) {
  if (objective == Objective::longest_sequence) {
    const std::int64_t positions = request.spec.max_position_embeddings;
    return with_greatest(request, kSequenceStep, positions > 0 ? positions : kMostSequence, [](std::int64_t tokens) {
      return Values{{"seq_len", tokens}};
    });
  }
  if (objective == Objective::largest_batch) {
    return with_greatest(request, 1, kMostMicroBatch, [](std::int64_t rows) {
      return Values{{"micro_batch", rows}, {"grad_accum", 1}};
    });
  }
  PlanRequest wanted = request;
  wanted.smallest = objective == Objective::headroom;
  return plan_on(wanted);
}

/// What would do elsewhere takes searches of its own, so of several clusters it is told of the answer alone.
ClusterPlan plan_on_cluster(const PlanRequest& request, const ClusterChoice& choice, Objective objective,
                            const Cluster& cluster) {
  PlanRequest asked = request;
  asked.cluster = cluster;
  if (choice.asks_how_many || choice.clusters.size() > 1) asked.names_other_clusters = asked.names_host_memory = false;
  try {
    return plan_for(asked.on(cluster), objective);
  } catch (const Error& error) {
    return refused(asked, error, std::current_exception());
  }
}

double free_share(const Estimate& estimate) {
  return 1 - static_cast<double>(worst_total(estimate).n) / static_cast<double>(estimate.capacity.n);
}

/// The greatest is best.
std::pair<double, double> merit(const ClusterPlan& made, Objective objective) {
  const Candidate& chosen = *made.plan->chosen;
  const auto gpus = static_cast<double>(made.request.cluster.cards());
  switch (objective) {
    case Objective::throughput:
      break;
    case Objective::cost:
      return {chosen.tokens_per_second / (gpus * made.price->per_gpu_hour), 0};
    case Objective::fewest_gpus:
      return {-gpus, chosen.tokens_per_second};
    case Objective::longest_sequence:
      return {static_cast<double>(chosen.job.sequence), chosen.tokens_per_second};
    case Objective::largest_batch:
      return {static_cast<double>(chosen.job.micro_batch), chosen.tokens_per_second};
    case Objective::headroom:
      return {free_share(chosen.estimate), chosen.tokens_per_second};
  }
  return {chosen.tokens_per_second, 0};
}

void require_price(const ClusterPlan& made) {
  if (made.price) return;
  const std::string& card = made.request.cluster.card.name;
  throw InputError(fmt::format("--objective cost: no price of {} is known; give --price {}=2.5/h, per GPU",
                               printable(card), printable(card)));
}

/// How many times a card's memory the smallest job needs, where none fits.
double excess(const ClusterPlan& made) {
  return static_cast<double>(made.plan->closest->total.n) / static_cast<double>(made.request.cluster.card.memory.n);
}

std::size_t best_of(const std::vector<ClusterPlan>& tried, Objective objective) {
  std::optional<std::size_t> best, searched;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    const bool has_no_plan = tried[i].plan && !tried[i].has_plan();
    if (has_no_plan && (!searched || excess(tried[i]) <= excess(tried[*searched]))) searched = i;
    if (!tried[i].has_plan()) continue;
    if (objective == Objective::cost) require_price(tried[i]);
    if (!best || merit(tried[i], objective) > merit(tried[*best], objective)) best = i;
  }
  if (!best && !searched) std::rethrow_exception(tried.front().error);
  return best ? *best : *searched;
}

/// Without a plan on any of several clusters, says what would do.
void explain_best(ClusterPlan& best, const PlanRequest& request, const ClusterChoice& choice) {
  if (best.has_plan() || !best.request.names_remedies) return;
  if (best.request.names_other_clusters || best.request.names_host_memory) return;
  // --host-memory is of all clusters, so it is refused beside one that says its own.
  const bool is_open = std::ranges::none_of(
      choice.clusters, [](const Cluster& each) { return each.is_cpu() || each.host_memory.n > 0; });
  best.request.names_other_clusters = request.names_other_clusters && !choice.asks_how_many;
  best.request.names_host_memory = request.names_host_memory && is_open;
  look_elsewhere(best.request, *best.plan);
}

}  // namespace

std::string_view objective_name(Objective objective) {
  return std::ranges::find(kNames, objective, &std::pair<Objective, std::string_view>::first)->second;
}

Objective parse_objective(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [objective, its_name] : kNames) {
    if (name == its_name) return objective;
    known.emplace_back(its_name);
  }
  try {
    unknown_value(name, known);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--objective: {}", error.what()));
  }
}

PlanAnswer best_plan(const PlanRequest& request, const ClusterChoice& choice, Objective objective,
                     const Prices& prices) {
  if (objective == Objective::longest_sequence) refuse_if_set(request, objective, {"seq_len"});
  if (objective == Objective::largest_batch) {
    refuse_if_set(request, objective, {"micro_batch", "grad_accum", "global_batch"});
  }
  PlanAnswer answer{.objective = objective, .tried = {}, .best = 0};
  const auto try_on = [&](const Cluster& cluster) {
    ClusterPlan& made = answer.tried.emplace_back(plan_on_cluster(request, choice, objective, cluster));
    made.price = prices.of(cluster.card);
    return made.has_plan();
  };
  if (choice.asks_how_many) {
    answer.objective = Objective::fewest_gpus;
    std::vector<Cluster> sizes;
    std::ranges::copy_if(choice.clusters, std::back_inserter(sizes),
                         [&](const Cluster& cluster) { return can_be_on(request, cluster); });
    if (sizes.empty()) sizes.push_back(choice.clusters.front());  // to say why
    greatest(static_cast<std::int64_t>(sizes.size()),
             [&](std::int64_t index) { return !try_on(sizes[static_cast<std::size_t>(index)]); });
    std::ranges::stable_sort(answer.tried, {}, [](const ClusterPlan& made) { return made.request.cluster.cards(); });
  } else {
    for (const Cluster& cluster : choice.clusters) try_on(cluster);
  }
  answer.best = best_of(answer.tried, answer.objective);
  explain_best(answer.tried[answer.best], request, choice);
  return answer;
}

}  // namespace vramfit
