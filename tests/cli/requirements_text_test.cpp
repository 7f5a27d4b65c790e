#include "cli/format/requirements_text.h"

#include <doctest/doctest.h>

#include <string>

#include "cli/format/estimate_text.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"

namespace vramfit {
namespace {

/// What one card needs of gpt2, without asking the other cards.
CardRequirements requirements_of_gpt2() {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  return {.one_card = estimate(spec, unresolved_job(), parse_cluster("1xH100-80GB@1048576GiB"), {.suggestions = false}),
          .cards = {}};
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
