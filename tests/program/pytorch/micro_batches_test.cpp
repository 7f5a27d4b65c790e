// A walk goes through some micro-batches of a step only: what it records is what it would record of all of them. It is
// given up where that reserves more than is wanted.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/pytorch/walk/whole_walks.h"
#include "program/readers/bytes.h"
#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "program/readers/least_reserved.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using Values = std::vector<const char*>;

struct Choice {
  const char* field;
  Values values;  // "": as by default
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all{
      {"sharding", {"", "", "no-shard", "shard-optimizer", "shard-grad-op", "full-shard"}},
      {"checkpointing", {"", "full"}},
      {"accumulate", {"", "", "sharded", "unsharded"}},
      {"method", {"", "", "lora", "qlora"}},
      {"optimizer", {"", "", "sgd", "adamw-8bit", "adafactor"}},
      {"micro_batch", {"1", "2"}},
      {"precision", {"", "", "", "bf16-pure", "fp16-mixed"}},
      {"offload", {"", "", "", "optimizer", "params"}},
      {"attention", {"", "flash", "eager"}},
      {"runtime", {"", "", "", "pytorch-fsdp1"}},
  };
  return all;
}

struct Drawn {
  Job job;
  Cluster cluster;
  std::string text;
};

/// Nothing where the job can't be made.
std::optional<Drawn> drawn(const char* stack, std::mt19937& random) {
  const auto one_of = [&](const Values& values) { return values[random() % values.size()]; };
  const char* const cards = one_of({"1xH100-80GB", "4xH100-80GB", "8xH100-80GB"});
  Drawn drawn{.job = unresolved_job(), .cluster = parse_cluster(cards), .text = std::string(stack) + " " + cards};
  try {
    drawn.job = on_stack(drawn.job, defaults_of(stack_named(stack), drawn.cluster));
    const auto set = [&](const char* field, const std::string& value) {
      if (value.empty()) return;
      job_field_named(field).set(drawn.job, value);
      drawn.text += " " + std::string(field) + "=" + value;
    };
    set("grad_accum", std::to_string(2 + random() % 31));
    for (const Choice& choice : choices()) set(choice.field, one_of(choice.values));
    std::vector<std::string> notes;
    drawn.job = resolve_job(drawn.job, testing::small_llama(), drawn.cluster, notes);
    require_rules(drawn.job, drawn.cluster);
  } catch (const Error&) {
    return std::nullopt;
  }
  return drawn;
}

std::optional<program::Program> walked(const Drawn& drawn, const Graph& graph) {
  try {
    return program::make_program({.graph = graph, .job = drawn.job, .device = drawn.cluster.card.device, .coords = {}});
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Whether a walk that has to reserve less than `limit` is given up.
bool is_given_up(const Drawn& drawn, const Graph& graph, Bytes limit) {
  try {
    program::make_program({.graph = graph,
                           .job = drawn.job,
                           .device = drawn.cluster.card.device,
                           .coords = {},
                           .labels = false,
                           .reserves_below = limit});
    return false;
  } catch (const program::ReservesTooMuch&) {
    return true;
  }
}

using EventText = std::pair<std::string, std::array<std::int64_t, 6>>;

std::vector<EventText> events_of(const program::Program& program, int steps) {
  std::vector<EventText> events;
  const Ledger ledger = ledger_of(program, {.steps = steps, .abbreviate = false});
  for (const Event& e : ledger.events) {
    events.emplace_back(
        e.label < 0 ? "" : ledger.labels[static_cast<std::size_t>(e.label)],
        std::array<std::int64_t, 6>{e.bytes, e.id, e.step, static_cast<std::int64_t>(e.category),
                                    static_cast<std::int64_t>(e.phase), static_cast<std::int64_t>(e.stream)});
  }
  return events;
}

TEST_CASE("random jobs allocate what they would if each micro-batch were walked through") {
  constexpr int kOfEach = 12, kDraws = 400;
  for (const char* const stack : {"transformers", "trl", "trl-dpo", "trl-reward", "trl-grpo", "accelerate", "deepspeed",
                                  "trl-deepspeed", "trl-dpo-deepspeed", "torchtune"}) {
    int compared = 0;
    for (unsigned seed = 0; seed < kDraws && compared < kOfEach; ++seed) {
      std::mt19937 random(seed);
      const std::optional<Drawn> job = drawn(stack, random);
      if (!job) continue;
      CAPTURE(seed);
      CAPTURE(job->text);
      const Graph graph = training_graph(testing::small_llama(), job->job);
      const std::optional<program::Program> folded = walked(*job, graph);
      if (!folded) continue;
      std::optional<program::Program> whole;
      {
        const eager::WholeWalks every_one;
        whole = walked(*job, graph);
      }
      REQUIRE(whole);
      const std::size_t fewer = folded->main.instructions.size(), all = whole->main.instructions.size();
      CHECK((job->job.accumulation < 4 ? fewer <= all : fewer < all));  // ZeRO-3 folds none of three
      CHECK(program::fault_of(*folded).value_or("") == "");
      CHECK((events_of(*folded, 3) == events_of(*whole, 3)));
      CHECK(host_bytes(*folded) == host_bytes(*whole));
      ReservedSoFar walked_through;  // of what follows once more in the program, only once
      walked_through.add_new(folded->main);
      CHECK(walked_through.peak() <= least_reserved(*folded));
      CHECK(is_given_up(*job, graph, walked_through.peak()));
      CHECK_FALSE(is_given_up(*job, graph, walked_through.peak() + Bytes{1}));
      ++compared;
    }
    CHECK_MESSAGE(compared == kOfEach, stack);
  }
}

}  // namespace
}  // namespace vramfit
