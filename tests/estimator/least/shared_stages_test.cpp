#include "estimator/least/shared_stages.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

struct Shaped {
  Job job;
  Graph graph;
};

Shaped shaped(const std::vector<std::pair<std::string, std::string>>& settings) {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  Shaped made{.job = unresolved_job(), .graph = {}};
  for (const auto& [name, value] : settings) job_field_named(name).set(made.job, value);
  std::vector<std::string> notes;
  made.job = resolve_job(made.job, spec, parse_cluster("4xRTX3090"), notes);
  made.graph = training_graph(spec, made.job);
  return made;
}

bool are_equal(const SavedActivations& a, const SavedActivations& b) {
  return a.inner == b.inner && a.input == b.input && a.output == b.output && a.forward_peak == b.forward_peak &&
         a.backward.values == b.backward.values && a.backward.many_shards == b.backward.many_shards &&
         a.full.recompute_peak == b.full.recompute_peak && a.selective.size() == b.selective.size();
}

TEST_CASE("graphs that differ in their loss share the tapes of layers, and hold what they would hold alone") {
  const Device device = parse_cluster("4xRTX3090").card.device;
  const Shaped full = shaped({{"micro_batch", "2"}, {"loss", "full"}}),
               chunked = shaped({{"micro_batch", "2"}, {"loss", "chunked:4"}}),
               larger = shaped({{"micro_batch", "4"}, {"loss", "full"}});
  SharedStages stages(device), alone(device);
  const SharedTapes& of_full = stages.tapes_of(full.graph, full.job);
  const SharedTapes& of_chunked = stages.tapes_of(chunked.graph, chunked.job);
  const SharedTapes& of_larger = stages.tapes_of(larger.graph, larger.job);
  for (std::size_t layer = 1; layer <= 12; ++layer) {
    CHECK(of_full[layer] == of_chunked[layer]);
    CHECK(of_full[layer] != of_larger[layer]);
  }
  CHECK(of_full.back() != of_chunked.back());
  const std::vector<SavedActivations>& saved = stages.saved_of(chunked.graph, chunked.job);
  const std::vector<SavedActivations>& expected = alone.saved_of(chunked.graph, chunked.job);
  REQUIRE(saved.size() == expected.size());
  for (std::size_t s = 0; s < saved.size(); ++s) CHECK(are_equal(saved[s], expected[s]));
}

TEST_CASE("layouts are shared by jobs whose optimizers keep other states, and not across what they depend on") {
  const Shaped usual = shaped({{"micro_batch", "2"}, {"optimizer", "adamw"}}),
               sgd = shaped({{"micro_batch", "4"}, {"optimizer", "sgd"}}),
               coded = shaped({{"micro_batch", "2"}, {"optimizer", "adamw-8bit"}}),
               grouped = shaped({{"micro_batch", "2"}, {"reshard", "2"}});
  SharedStages stages(parse_cluster("4xRTX3090").card.device);
  const UnitLayout* const layout = &stages.layout_of(usual.graph, usual.job);
  CHECK(&stages.layout_of(sgd.graph, sgd.job) == layout);
  CHECK(&stages.layout_of(coded.graph, coded.job) != layout);  // states in blocks
  CHECK(&stages.layout_of(grouped.graph, grouped.job) != layout);
}

}  // namespace
}  // namespace vramfit
