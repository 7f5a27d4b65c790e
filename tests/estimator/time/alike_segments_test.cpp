#include "estimator/time/alike_segments.h"

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

using Firsts = std::vector<std::size_t>;

/// Of GPT-2, which has an embedding, 12 layers and a head that shares the embedding's matrix.
Firsts firsts_with(const std::vector<std::pair<std::string, std::string>>& settings) {
  const ModelSpec spec = catalog_spec(*find_in_catalog("gpt2"));
  Job job = unresolved_job();
  for (const auto& [name, value] : settings) job_field_named(name).set(job, value);
  std::vector<std::string> notes;
  job = resolve_job(job, spec, parse_cluster("4xRTX3090"), notes);
  const Graph graph = training_graph(spec, job);
  Firsts firsts = first_alike(graph, lay_out_units(graph, job));
  firsts.resize(13);  // without head and loss
  return firsts;
}

TEST_CASE("layers with units of their own are alike") {
  const Firsts alike{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  CHECK(firsts_with({{"wrap", "layer"}}) == alike);
  CHECK(firsts_with({{"wrap", "layer"}, {"sharding", "no-shard"}}) == alike);
  CHECK(firsts_with({{"wrap", "layer"}, {"reshard", "2"}}) == alike);
}

TEST_CASE("layers whose adapters come behind all other parameters are alike") {
  CHECK(firsts_with({{"wrap", "layer"}, {"method", "lora"}}) == Firsts{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("layers that train other parameters are not alike") {
  CHECK(firsts_with({{"wrap", "layer"}, {"freeze", "layers:0-3"}}) == Firsts{0, 1, 1, 1, 1, 5, 5, 5, 5, 5, 5, 5, 5});
}

TEST_CASE("layers that share a unit are like no other") {
  const Firsts own{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  CHECK(firsts_with({{"wrap", "layers:2"}}) == own);
  CHECK(firsts_with({{"wrap", "none"}}) == own);
}

}  // namespace
}  // namespace vramfit
