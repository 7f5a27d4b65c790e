// Schedules of random jobs, walked as the executor walks them. A failure is shrunk to the fewest choices that show it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/sharding/sharding.h"
#include "program/schedules/schedule.h"
#include "program/stages/trainable.h"
#include "tests/support/config_file.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

struct Choice {
  std::string field;                // of the job; "model" and "shard" besides
  std::vector<std::string> values;  // the simplest first
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> kChoices{
      {"model", {"llama", "gemma", "gpt2", "bert"}},  // the last three with a tied weight
      {"shard", {"4", "1", "2", "6", "8"}},
      {"sharding", {"full-shard", "shard-grad-op", "no-shard"}},
      {"reshard", {"always", "default", "last-kept", "never", "2"}},
      {"wrap",
       {"layer", "layers:2", "layers:3", "none", "size:300", "size:6000", "size:18000", "pattern:*.0",
        "pattern:*att*n*,*.1,*e*"}},
      {"wrap_embeddings", {"on", "off"}},
      {"prefetch",
       {"backward=none,forward=0", "backward=post,forward=1", "backward=pre,forward=1",
        "backward=post,forward=3,limit=1", "backward=pre,forward=9,limit=2", "backward=none,forward=2"}},
      {"reshard_head", {"on", "off"}},
      {"checkpointing", {"none", "full", "every:2"}},
      {"reduce_finish", {"early", "end"}},
      {"loss", {"full", "chunked:3"}},
      {"freeze", {"", "embeddings", "*.0.*"}},
      {"grad_accum", {"1", "2"}},
      {"optimizer_in_backward", {"off", "on"}}};
  return kChoices;
}

using Picks = std::vector<std::size_t>;  // by choice, an index in its values

struct Case {
  Job job;
  Graph graph;
  UnitLayout layout;
  std::vector<bool> has_backward;
  std::vector<Instruction> schedule;
};

std::string picked(const Picks& picks, std::size_t choice) { return choices()[choice].values[picks[choice]]; }

std::string text_of(const Picks& picks) {
  std::string text;
  for (std::size_t c = 0; c < picks.size(); ++c) text += fmt::format("{} {}; ", choices()[c].field, picked(picks, c));
  return text;
}

/// Choices that contradict each other give way to the sharding.
Job job_of(const Picks& picks) {
  Job job = testing::tiny_job();
  job.mesh.shard = std::stoll(picked(picks, 1));
  for (std::size_t c = 2; c < picks.size(); ++c) job_field_named(choices()[c].field).set(job, picked(picks, c));
  const Sharding& sharding = sharding_named(job.sharding);
  if (!sharding.parameters) job.mesh = {.replicate = job.mesh.shard, .shard = 1};
  const auto* groups = std::get_if<ReshardGroups>(&job.reshard);
  const bool no_groups = groups != nullptr && job.mesh.shard % groups->ranks != 0;
  if (!sharding.reshard || no_groups) job.reshard = ReshardByDefault{};
  if (job.optimizer_in_backward) job.accumulation = 1;
  return job;
}

Case case_of(const Picks& picks) {
  Case c{.job = job_of(picks), .graph = {}, .layout = {}, .has_backward = {}, .schedule = {}};
  c.graph = build_graph(testing::small_model(picked(picks, 0)), loss_options(c.job));
  c.layout = lay_out_units(c.graph, c.job);
  c.has_backward = segments_with_backward(c.graph, c.job);
  c.schedule = make_schedule({.job = c.job,
                              .graph = c.graph,
                              .layout = c.layout,
                              .segment_has_backward = c.has_backward,
                              .clip = !c.job.optimizer_in_backward});
  return c;
}

bool is_table(const Op& op) {
  return op.kind == OpKind::embedding || op.kind == OpKind::position_embedding || op.kind == OpKind::type_embedding;
}

/// Walks a schedule; what it says is wrong, or "".
class Walk {
 public:
  explicit Walk(const Case& c) : c_(c) {}

  std::string first_fault() {
    for (std::size_t i = 0; i < c_.schedule.size(); ++i) {
      const std::string fault = step(c_.schedule[i]);
      if (!fault.empty()) return fmt::format("instruction {}: {}", i, fault);
    }
    if (!live_.empty()) return "a unit is still gathered at the end";
    if (!reducing_.empty()) return "a reduction is not finished";
    if (!slices_.empty()) return "a slice is still kept";
    const bool leaves_none = c_.job.optimizer_in_backward && c_.job.mesh.replicate == 1;
    if (leaves_none && updated_ != finished_) return "a unit is left to the end of the step";
    return "";
  }

 private:
  std::string step(const Instruction& i) {
    switch (i.what) {
      case Do::issue:
        return issue(i);
      case Do::wait:
        if (!live_.contains(i.unit)) return "waits for what was not issued";
        in_flight_.erase(i.unit);
        return "";
      case Do::release:
      case Do::reshard:
        if (in_flight_.contains(i.unit)) return "released in flight";
        if (i.what == Do::reshard) slices_.insert(i.unit);
        return live_.erase(i.unit) == 1 ? "" : "released twice";
      case Do::forward:
      case Do::recompute:
      case Do::backward:
        return run(i);
      case Do::reduce:
        if (updated_.contains(i.unit)) return "reduced after its update";
        return reducing_.insert(i.unit).second ? "" : "reduced twice at once";
      case Do::finish:
        finished_.insert(i.unit);
        return reducing_.erase(i.unit) == 1 ? "" : "finished without a reduction";
      case Do::sum_replicas:
        if (!std::ranges::any_of(i.bucket, [&](int unit) { return reducing_.contains(unit); })) return "";
        return "summed over replicas while it is reduced";
      case Do::step:
        return update(i);
      case Do::accumulate:
      case Do::mask:
      case Do::begin:
      case Do::end:
      case Do::clip:
        return "";
    }
    return "";
  }

  std::string update(const Instruction& i) {
    if (i.unit < 0) return "";
    if (live_.contains(i.unit)) return "updated while gathered";
    if (reducing_.contains(i.unit)) return "updated while reduced";
    return updated_.insert(i.unit).second ? "" : "updated twice";
  }

  std::string issue(const Instruction& i) {
    if (updated_.contains(i.unit)) return "issued after its update";
    if (!live_.insert(i.unit).second) return "issued while gathered";
    in_flight_.insert(i.unit);
    if ((slices_.erase(i.unit) > 0) != i.in_group) return "gathered from the wrong group";
    const auto limit = static_cast<std::size_t>(c_.job.prefetch_limit);
    if (limit > 0 && in_flight_.size() > limit) return "more in flight than the limit";
    return live_.size() > bound() ? fmt::format("{} gathered units, more than {}", live_.size(), bound()) : "";
  }

  /// Every unit that a pass reads is there and not on its way.
  std::string run(const Instruction& i) {
    for (const Op& op : c_.graph.segments[static_cast<std::size_t>(i.segment)].ops) {
      if (i.what == Do::backward && is_table(op)) continue;
      for (const ParameterUse& use : op.parameters) {
        const int unit = c_.layout.unit_of_parameter[static_cast<std::size_t>(use.parameter)];
        if (!live_.contains(unit) || in_flight_.contains(unit)) return "runs without its weights";
      }
    }
    return "";
  }

  /// Prefetch depth + 1 times the most units of a segment, and those that the job keeps.
  std::size_t bound() const {
    std::size_t most = 0;
    std::set<int> kept;
    const Job& job = c_.job;
    const bool keeps_all = !sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard);
    std::size_t last_block = 0;
    for (std::size_t s = 0; s < c_.graph.segments.size(); ++s) {
      if (c_.graph.segments[s].role == SegmentRole::block) last_block = s;
    }
    for (std::size_t s = 0; s < c_.graph.segments.size(); ++s) {
      const std::vector<int>& units = c_.layout.units_of_segment[s];
      most = std::max(most, units.size());
      const bool head = c_.graph.segments[s].role == SegmentRole::head && !job.reshard_head;
      const bool keeps_last = std::holds_alternative<ReshardLastKept>(job.reshard);
      const bool last = s == last_block && keeps_last;
      for (const int unit : units) {
        const bool root = c_.layout.units[static_cast<std::size_t>(unit)].name == "root" &&
                          (std::holds_alternative<ReshardByDefault>(job.reshard) || keeps_last);
        if (keeps_all || head || last || root) kept.insert(unit);
      }
    }
    const auto depth = static_cast<std::size_t>(
        std::max<std::int64_t>(job.forward_prefetch, job.backward_prefetch == BackwardPrefetch::none ? 0 : 1));
    return (depth + 1) * most + kept.size();
  }

  const Case& c_;
  std::set<int> live_, in_flight_, slices_, reducing_, finished_, updated_;
};

std::string fault_of(const Picks& picks) {
  try {
    const Case c = case_of(picks);
    return Walk(c).first_fault();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// The same fault, or another, with as many choices as can be at their simplest.
Picks shrunk(Picks picks) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t& pick : picks) {
      const std::size_t was = pick;
      for (pick = 0; pick < was && fault_of(picks).empty();) ++pick;
      smaller = smaller || pick < was;
    }
  }
  return picks;
}

}  // namespace

TEST_CASE("whatever the job, weights are there when they are read, and no more units are gathered than it says") {
  std::mt19937_64 random(20261121);
  for (int n = 0; n < 1500; ++n) {
    Picks picks;
    for (const Choice& choice : choices()) picks.push_back(random() % choice.values.size());
    if (fault_of(picks).empty()) continue;
    const Picks smallest = shrunk(picks);
    FAIL(text_of(smallest), fault_of(smallest));
  }
}

}  // namespace vramfit
