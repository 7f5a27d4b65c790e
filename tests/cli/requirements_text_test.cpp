#include "cli/format/requirements_text.h"

#include <doctest/doctest.h>

#include <string>

#include "cli/format/estimate_text.h"
#include "job/cluster/card_names.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"

namespace vramfit {
namespace {

/// What one card needs of gpt2, without asking the other cards.
CardRequirements requirements_of_gpt2() {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  return {.one_card = estimate(spec, unresolved_job(), parse_cluster("1xH100-80GB@1048576GiB"), {.suggestions = false}),
          .cards = {},
          .change = {}};
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE(
    "without --gpus, reserved memory that grows has no upper bound, whatever the card without a limit was given") {
  CardRequirements requirements = requirements_of_gpt2();
  CHECK(says(requirements_text(requirements, "gpt2", {}), "   upper bound "));
  CHECK_FALSE(says(requirements_to_json(requirements), "\"upper_bound_bytes\": null"));

  RankEstimate& rank = requirements.one_card.ranks.front();
  rank.reserved_grows = true;
  rank.upper_bound = requirements.one_card.capacity;  // as estimate() does
  const std::string text = requirements_text(requirements, "gpt2", {});
  CHECK(says(text, "and more with every step, on one card"));
  CHECK(says(text, "no upper bound: reserved memory grows with every step"));
  CHECK_FALSE(says(text, "   upper bound "));
  CHECK(says(requirements_to_json(requirements), "\"upper_bound_bytes\": null"));
}

TEST_CASE("without --gpus, cards are listed by what is known of them, each heading with cards below it") {
  const auto card = [](const char* name) { return find_card(name); };
  CardRequirements requirements = requirements_of_gpt2();
  requirements.change = "--checkpointing full";
  requirements.cards = {
      {.card = card("B200-192GB"),
       .answer = CardAnswer::lacks_rules,
       .why = "experts",
       .fewest = {},
       .fewest_changed = {}},
      {.card = card("L40S"),
       .answer = CardAnswer::does_not,
       .why = "",
       .fewest = {},
       .fewest_changed = {.cluster = "8xL40S", .cards = 8, .total = kGiB, .upper_bound = kGiB}},
      {.card = card("L4"), .answer = CardAnswer::does_not, .why = "", .fewest = {}, .fewest_changed = {}},
      {.card = card("T4"),
       .answer = CardAnswer::cannot_run,
       .why = "such a card (compute capability 7.5) has no FP8 units; can be rehearsed: vramfit rehearse --gpus "
              "1xV100-32GB",
       .fewest = {},
       .fewest_changed = {}}};
  const std::string text = requirements_text(requirements, "gpt2", {});
  CHECK_FALSE(says(text, "Cards that hold it ("));
  CHECK(says(text, "\nCards that hold it with --checkpointing full\n    8 cards  L40S\n"));
  CHECK(says(text, "\nNot on 512 or fewer, as it is or with --checkpointing full\n             L4\n"));
  CHECK(says(text, "\nNo rules: experts\n             B200-192GB\n"));
  CHECK(says(text, "\nNot at all: such a card (compute capability 7.5) has no FP8 units\n             T4\n"));
  const std::string json = requirements_to_json(requirements);
  CHECK(says(json, "\"why\": \"T4 (compute capability 7.5) has no FP8 units\""));
  CHECK(says(json, "\"change\": \"--checkpointing full\""));
  CHECK(says(json, "\"modelled\": false"));

  requirements.change.clear();
  requirements.cards = {{.card = card("L4"),
                         .answer = CardAnswer::holds,
                         .why = "",
                         .fewest = {"2xL4", 2, kGiB, kGiB},
                         .fewest_changed = {}}};
  CHECK(says(requirements_text(requirements, "gpt2", {}),
             "\nCards that hold it (1, 2, 4, ... of them)\n    2 cards  L4\n"));
}

TEST_CASE("without --gpus, --confidence is named in the command that goes on, and its margins are in the JSON") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  const auto job_on = [](const Cluster&) { return unresolved_job(); };
  const CardRequirements requirements =
      card_requirements(spec, job_on, {.suggestions = false}, parse_confidence("0.9"));
  CHECK(says(requirements_text(requirements, "gpt2", {}), "--gpus 1xH100-80GB --confidence 0.9\n"));
  CHECK(says(requirements_to_json(requirements), "\"bound\": {"));
  CHECK_FALSE(says(requirements_to_json(requirements_of_gpt2()), "\"bound\""));
}

}  // namespace vramfit
