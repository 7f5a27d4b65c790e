// What a plan searches where changes of the result are allowed, and how changes of several kinds combine.
#include "planner/search/changes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "planner/search/best_first.h"
#include "tests/planner/drawn_requests.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::fix;
using testing::request_for;

namespace {

using Names = std::vector<std::string>;

/// Of each group, of a request as a person makes it.
std::vector<std::vector<Names>> needs_to_search(PlanRequest request, const std::string& allow) {
  request = testing::resolved(request);
  request.allowed = parse_allowed(allow);
  std::vector<std::vector<Names>> groups;
  for (const std::vector<Change>& group : groups_to_search(request)) {
    groups.emplace_back();
    for (const Change& change : group) groups.back().push_back(change.needs);
  }
  return groups;
}

}  // namespace

TEST_CASE("allowed kinds combine: the fewest last resorts first, then the fewest other changes") {
  const PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  using Groups = std::vector<std::vector<Names>>;
  CHECK(needs_to_search(request, "") == Groups{{{}}});
  CHECK(needs_to_search(request, "precision,optimizer:lion,optimizer:adamw-8bit") ==
        Groups{{{},
                {"precision:bf16-pure"},
                {"optimizer:lion"},
                {"optimizer:adamw-8bit"},
                {"precision:bf16-pure", "optimizer:lion"},
                {"precision:bf16-pure", "optimizer:adamw-8bit"}}});
  CHECK(needs_to_search(request, "method:lora,optimizer,seq-len:32") ==
        Groups{{{}, {"optimizer:adamw-8bit"}},
               {{"method:lora"}, {"optimizer:adamw-8bit", "method:lora"}},
               {{"seq-len:32"}, {"optimizer:adamw-8bit", "seq-len:32"}},
               {{"method:lora", "seq-len:32"}, {"optimizer:adamw-8bit", "method:lora", "seq-len:32"}}});
  // Own kernels have something to do once the states have 8 bits.
  CHECK(needs_to_search(request, "kernels,optimizer") ==
        Groups{{{}, {"optimizer:adamw-8bit"}, {"kernels:vramfit", "optimizer:adamw-8bit"}}});
}

TEST_CASE(
    "all weights are trained again where adapters were asked for, and what was set of adapters stands against it") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "method", "qlora");
  CHECK(needs_to_search(request, "method:full") == std::vector<std::vector<Names>>{{{}}, {{"method:full"}}});
  fix(request, "lora_rank", "4");
  CHECK_THROWS_WITH_AS(needs_to_search(request, "method:full"), doctest::Contains("--lora-rank"), Conflict);
}

TEST_CASE("under PyTorch adapters lead to weights in 4 bits, and frozen weights in fp32 to 16 bits") {
  using Groups = std::vector<std::vector<Names>>;
  const auto searched = [](const char* runtime, const char* modeling, const char* method, const std::string& allow) {
    PlanRequest request = request_for("llama", parse_cluster("1xH100-80GB"));
    fix(request, "runtime", runtime);
    fix(request, "modeling", modeling);
    if (std::string(method) != "full") fix(request, "method", method);
    return needs_to_search(request, allow);
  };
  CHECK(searched("pytorch", "trl", "lora", "method") == Groups{{{}}, {{"method:qlora"}}});
  CHECK(searched("pytorch", "trl", "lora", "frozen-dtype") == Groups{{{}, {"frozen-dtype:bf16"}}});
  CHECK(searched("pytorch", "trl", "full", "method:lora,frozen-dtype") ==
        Groups{{{}}, {{"method:lora"}, {"frozen-dtype:bf16", "method:lora"}}});
  // What a person set, any leaves alone; its kind's name doesn't.
  CHECK(searched("pytorch", "trl", "lora", "any,method:qlora").size() == 2);
  CHECK(searched("pytorch", "trl", "lora", "any").size() == 1);
  for (const auto& [runtime, modeling, method, why] :
       {std::tuple{"pytorch", "transformers", "lora", "frozen weights are in bf16 already"},
        std::tuple{"deepspeed", "trl", "lora", "frozen weights are in bf16 already"},
        std::tuple{"vramfit", "vramfit", "lora", "frozen weights are in bf16 already"},
        std::tuple{"pytorch", "trl", "full", "all weights are trained"}}) {
    CHECK_THROWS_WITH_AS(searched(runtime, modeling, method, "frozen-dtype"), doctest::Contains(why), Conflict);
  }
  CHECK_THROWS_AS(searched("vramfit", "vramfit", "lora", "method"), Conflict);  // it has quantization
}

TEST_CASE("gradients of another dtype are tried by name, and codes that are sent are not those that are kept") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  using Groups = std::vector<std::vector<Names>>;
  CHECK(needs_to_search(request, "gradient-dtype:bf16") == Groups{{{}, {"gradient-dtype:bf16"}}});
  CHECK_THROWS_WITH_AS(needs_to_search(request, "gradient-dtype"), doctest::Contains("it needs a value"), Conflict);
  fix(request, "gradient_dtype", "fp8");
  CHECK(needs_to_search(request, "gradient-dtype:fp8-sent") == Groups{{{}, {"gradient-dtype:fp8-sent"}}});
}

TEST_CASE("what a job may have is named with a value where it has none by default") {
  const PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  CHECK_THROWS_WITH_AS(needs_to_search(request, "quantization:int8"),
                       doctest::Contains("may have: kernels:vramfit, precision, optimizer, global-batch, method"),
                       Conflict);
}

TEST_CASE("a combination that is another one's job, or can't be, is left out") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  using Groups = std::vector<std::vector<Names>>;
  // Without adapters no matrix is frozen. Those of QLoRA have few bits already: another name for LoRA with them.
  CHECK_THROWS_AS(needs_to_search(request, "quantization:int8"), Conflict);
  CHECK(needs_to_search(request, "quantization,method") ==
        Groups{{{}}, {{"method:lora"}}, {{"method:qlora"}}, {{"quantization:int8", "method:lora"}}});
  CHECK(needs_to_search(request, "quantization:nf4-double,method:lora") ==
        Groups{{{}}, {{"method:lora"}}, {{"quantization:nf4-double", "method:lora"}}});
  // Stochastic rounding is for parameters in bf16.
  CHECK(needs_to_search(request, "precision,optimizer:adamw-stochastic") ==
        Groups{{{}, {"precision:bf16-pure"}, {"precision:bf16-pure", "optimizer:adamw-stochastic"}}});
  std::string many = "global-batch:2";
  for (int i = 2; i <= 32; ++i) many += fmt::format(",global-batch:{},seq-len:{}", 2 * i, i);
  for (const char* kind : {",method", ",precision:fp32,precision:fp16-mixed", ",optimizer:lion,optimizer:sgd"}) {
    many += kind;
  }
  many += ",precision,precision:fp8,optimizer:adafactor,optimizer:adamw-8bit";
  CHECK_THROWS_WITH_AS(needs_to_search(request, many), doctest::Contains("name fewer"), InputError);
}

namespace {

/// A kind, and values that --allow names: in the order in which they are weighed.
struct NamedKind {
  std::string name, field;
  bool last_resort;
  std::vector<std::string> values;
};

const std::array<NamedKind, 6> kNamedKinds{{{"precision", "precision", false, {"bf16-pure", "fp32"}},
                                            {"optimizer", "optimizer", false, {"adamw-8bit", "sgd"}},
                                            {"global-batch", "global_batch", false, {"4"}},
                                            {"quantization", "quantization", true, {"int8"}},
                                            {"method", "method", true, {"lora"}},
                                            {"seq-len", "seq_len", true, {"32", "16"}}}};

/// A number of a value by kind; 0: none.
using Picks = std::array<std::size_t, kNamedKinds.size()>;

/// How many last resorts, which, how many others, which.
std::vector<std::size_t> rank_of(const Picks& picks) {
  std::vector<std::size_t> rank;
  for (const bool last_resort : {true, false}) {
    std::vector<std::size_t> chosen;
    for (std::size_t kind = 0; kind < picks.size(); ++kind) {
      if (kNamedKinds[kind].last_resort != last_resort || picks[kind] == 0) continue;
      chosen.push_back(kind);
      chosen.push_back(picks[kind]);
    }
    rank.push_back(chosen.size());
    rank.insert(rank.end(), chosen.begin(), chosen.end());
  }
  return rank;
}

bool has_same_last_resorts(const Picks& a, const Picks& b) {
  for (std::size_t kind = 0; kind < a.size(); ++kind) {
    if (kNamedKinds[kind].last_resort && a[kind] != b[kind]) return false;
  }
  return true;
}

/// All picks of those that are allowed, in the order in which they are weighed.
std::vector<Picks> all_picks(const Picks& most) {
  std::vector<Picks> list{Picks{}};
  for (std::size_t kind = 0; kind < most.size(); ++kind) {
    const std::size_t before = list.size();
    for (std::size_t i = 0; i < before; ++i) {
      for (std::size_t pick = 1; pick <= most[kind]; ++pick) {
        list.push_back(list[i]);
        list.back()[kind] = pick;
      }
    }
  }
  std::ranges::stable_sort(list, {}, rank_of);
  return list;
}

/// The first that fits of the job with these values, as if a person had set them; none if it can't be or nothing fits.
std::optional<Fitting> best_with(PlanRequest request, const Picks& picks, BestBy by) {
  try {
    for (std::size_t kind = 0; kind < picks.size(); ++kind) {
      if (picks[kind] == 0) continue;
      const JobField& field = job_field_named(kNamedKinds[kind].field);
      const std::string& value = kNamedKinds[kind].values[picks[kind] - 1];
      if (field.get(request.job) == value) return std::nullopt;  // no change
      set_job_field(request.job, field, value, kNamedKinds[kind].field);
    }
    request = testing::resolved(request);
    Evaluator evaluator(request);
    SearchCounts counts;
    BestFirst queue(evaluator, request, {{.job = request.job}}, by, counts);
    return first_that_fits(queue, evaluator, -1);
  } catch (const Error&) {
    return std::nullopt;
  }
}

Names needs_of(const Picks& picks) {
  Names needs;
  for (std::size_t kind = 0; kind < picks.size(); ++kind) {
    if (picks[kind] == 0) continue;
    needs.push_back(kNamedKinds[kind].name + ":" + kNamedKinds[kind].values[picks[kind] - 1]);
  }
  return needs;
}

/// Of the first last resorts that have a plan the fastest; of equally fast ones the first.
std::optional<std::pair<Names, Option>> best_of_all(const PlanRequest& request, const Picks& most) {
  std::optional<std::pair<Names, Option>> best;
  Picks of_best{};
  for (const Picks& picks : all_picks(most)) {
    if (best && !has_same_last_resorts(picks, of_best)) break;
    const std::optional<Fitting> found = best_with(request, picks, BestBy::speed);
    if (!found || (best && found->option.tokens_per_second <= best->second.tokens_per_second)) continue;
    best.emplace(needs_of(picks), found->option);
    of_best = picks;
  }
  return best;
}

}  // namespace

TEST_CASE("the plan is the best of those that have one combination of the allowed changes each, drawn at random") {
  std::mt19937_64 random(29);
  int compared = 0, combined = 0, three_or_more = 0, none = 0;
  for (int round = 0; round < 32; ++round) {
    testing::Drawn drawn = testing::draw(random);
    std::erase_if(drawn.set, [](const testing::Setting& setting) { return setting.first == "freeze"; });
    PlanRequest request = testing::unresolved_request_of(drawn);
    request.names_other_clusters = false;
    Picks most{};
    std::string allow;
    for (std::size_t kind = 0; kind < most.size(); ++kind) {
      most[kind] = random() % (kNamedKinds[kind].values.size() + 1);
      if (kNamedKinds[kind].name == "method" && allow.find("quantization") != std::string::npos) most[kind] = 1;
      for (std::size_t value = 0; value < most[kind]; ++value) {
        allow +=
            fmt::format("{}{}:{}", allow.empty() ? "" : ",", kNamedKinds[kind].name, kNamedKinds[kind].values[value]);
      }
    }
    CAPTURE(testing::text_of(drawn));
    CAPTURE(allow);
    Plan plan;
    try {
      // A card that just holds the smallest job with some of the changes.
      Picks some{};
      for (std::size_t kind = 0; kind < most.size(); ++kind) some[kind] = random() % (most[kind] + 1);
      const std::optional<Fitting> smallest = best_with(request, some, BestBy::need);
      if (!smallest) continue;
      request.cluster.card.memory = smallest->rank.upper_bound - Bytes{random() % 4 == 0 ? 1 : 0};
      request.allowed = parse_allowed(allow);
      plan = make_plan(request);
    } catch (const Error&) {
      continue;  // a contradiction, also of what is named
    }
    request.allowed = {};
    const std::optional<std::pair<Names, Option>> best = best_of_all(request, most);
    ++compared;
    REQUIRE(plan.chosen.has_value() == best.has_value());
    if (!best) {
      ++none;
      continue;
    }
    CHECK(plan.chosen->needs == best->first);
    CHECK(plan.chosen->tokens_per_second == best->second.tokens_per_second);
    CHECK(job_as_flags(plan.chosen->job, unresolved_job()) == job_as_flags(best->second.job, unresolved_job()));
    combined += best->first.size() > 1 ? 1 : 0;
    three_or_more += best->first.size() > 2 ? 1 : 0;
  }
  MESSAGE(compared, " compared, ", combined, " combine, ", three_or_more, " three or more, ", none, " have none");
  CHECK(compared > 6);
  CHECK(combined > 0);
}

}  // namespace vramfit
