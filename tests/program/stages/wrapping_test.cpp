#include "program/stages/wrapping.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "program/stages/units_layout.h"
#include "tests/support/config_file.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

Job wrapped(const std::string& wrap) {
  Job job = testing::tiny_job();
  job_field_named("wrap").set(job, wrap);
  return job;
}

Graph graph_of(const std::string& model, const Job& job = {}) {
  return build_graph(testing::small_model(model), loss_options(job));
}

/// "NAME: ELEMENTS" of each unit, in the layout's order.
std::vector<std::string> units_of(const std::string& model, const std::string& wrap) {
  const Graph graph = graph_of(model);
  std::vector<std::string> units;
  for (const Unit& unit : lay_out_units(graph, wrapped(wrap)).units) {
    std::int64_t elements = 0;
    for (const UnitParameter& p : unit.parameters) {
      elements += element_count(graph.parameters[static_cast<std::size_t>(p.parameter)]);
    }
    units.push_back(unit.name + ": " + std::to_string(elements));
  }
  return units;
}

std::string random_wrap(std::mt19937_64& random) {
  static const std::vector<std::string> kWraps{
      "layer", "layers:2", "layers:3", "none", "pattern:*.0,*.1", "pattern:*norm*,*ln_*,*LayerNorm*", "pattern:*"};
  const std::uint64_t choice = random() % (2 * kWraps.size());
  if (choice < kWraps.size() && choice != 5) return kWraps[choice];
  return "size:" + std::to_string(1 + random() % (std::uint64_t{1} << (1 + random() % 18)));
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "whatever the wrapping, every parameter is in one unit, once, and units stand in the order of their first use") {
  for (const std::string& model : testing::small_models()) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      std::mt19937_64 random(seed);
      Job job = wrapped(random_wrap(random));
      job.wrap_embeddings = random() % 2 == 0;
      if (random() % 2 != 0) job.loss = ChunkedLoss{};
      job.mesh.shard = 1 + static_cast<std::int64_t>(random() % 5);
      const std::string wrap = job_field_named("wrap").get(job);
      CAPTURE(model);
      CAPTURE(wrap);
      const Graph graph = graph_of(model, job);
      const UnitLayout layout = lay_out_units(graph, job);
      std::map<int, int> times;
      std::set<std::string> names;
      for (const Unit& unit : layout.units) {
        CHECK(names.insert(unit.name).second);
        CHECK_FALSE(unit.parameters.empty());
        for (const UnitParameter& p : unit.parameters) ++times[p.parameter];
      }
      CHECK(times.size() == graph.parameters.size());
      CHECK(std::ranges::all_of(times, [](const auto& entry) { return entry.second == 1; }));
      int known = 0;
      for (const std::vector<int>& touched : layout.units_of_segment) {
        for (const int unit : touched) {
          CHECK(unit <= known);
          known = std::max(known, unit + 1);
        }
      }
      CHECK(known == static_cast<int>(layout.units.size()));
    }
  }
}

TEST_CASE("without wrapping all parameters are one unit that every segment with weights touches") {
  const Job job = wrapped("none");
  const UnitLayout layout = lay_out_units(graph_of("llama"), job);
  REQUIRE(layout.units.size() == 1);
  CHECK(layout.units[0].name == "root");
  for (std::size_t s = 0; s + 1 < layout.units_of_segment.size(); ++s) {
    CHECK(layout.units_of_segment[s] == std::vector<int>{0});
  }
  CHECK(layout.units_of_segment.back().empty());  // the loss
}

TEST_CASE("groups of layers are units, of which the last one may have fewer") {
  CHECK(units_of("llama", "layers:2") == Names{"embed: 19648", "layers.0-1: 61696", "layers.2: 30848", "head: 19712"});
  CHECK(units_of("llama", "layers:3") == Names{"embed: 19648", "layers.0-2: 92544", "head: 19712"});
  CHECK(units_of("llama", "layers:4096") == units_of("llama", "layers:3"));
  CHECK(units_of("gpt2", "layers:2").at(1).starts_with("layers.0-1: "));
  Job job = wrapped("layers:2");
  job.wrap_embeddings = false;
  const UnitLayout layout = lay_out_units(graph_of("llama"), job);
  REQUIRE(layout.units.size() == 3);
  CHECK(layout.units[0].name == "root");
  CHECK(layout.units_of_segment == std::vector<std::vector<int>>{{0}, {1}, {1}, {2}, {0}, {}});
}

TEST_CASE("a group has at least two layers") {
  for (const char* wrap : {"layers:1", "layers:0", "layers:-2", "layers:", "layers:two", "layers:2,2", "layers:4097"}) {
    CAPTURE(wrap);
    CHECK_THROWS_AS(wrapped(wrap), InputError);
  }
  CHECK(job_field_named("wrap").get(wrapped("layers:12")) == "layers:12");
}

// llama: embed_tokens and lm_head 307 x 64; a block is q and o 64 x 64, k and v 32 x 64, three of 96 x 64, two norms.
TEST_CASE("by size, a large enough module is a unit, its large enough parts being units before it") {
  CHECK(units_of("llama", "size:25000") ==
        Names{"root: 39360", "model.layers.0: 30848", "model.layers.1: 30848", "model.layers.2: 30848"});
  // Attention and norms of a block, 12416, are too small; the three together in `model`, with the last norm, are not.
  CHECK(units_of("llama", "size:18000") == Names{"model.embed_tokens: 19648", "model: 37312",
                                                 "model.layers.0.mlp: 18432", "model.layers.1.mlp: 18432",
                                                 "model.layers.2.mlp: 18432", "lm_head: 19648"});
  CHECK(units_of("llama", "size:1000000") == Names{"root: 131904"});
}

TEST_CASE("by size, a tied weight counts where its name is") {
  // gemma: 305 x 64 tied. A block is attention (q and o 128 x 64, k and v 32 x 64: 20480), three of 96 x 64 (18432) and
  // two norms.
  CHECK(units_of("gemma", "size:19000") == Names{"model.embed_tokens: 19520", "model: 37184",
                                                 "model.layers.0.self_attn: 20480", "model.layers.1.self_attn: 20480"});
}

TEST_CASE("by size, gpt2's transposed matrices and biases count like others") {
  // wte 309 x 64, wpe 128 x 64; a block's attention 12480 + 4160, mlp 16640 + 16448, each with its bias; norms of 128.
  CHECK(units_of("gpt2", "size:16000") == Names{"transformer.wte: 19776", "root: 8832", "transformer.h.0.attn: 16640",
                                                "transformer.h.0.mlp.c_fc: 16640", "transformer.h.0.mlp.c_proj: 16448",
                                                "transformer.h.1.attn: 16640", "transformer.h.1.mlp.c_fc: 16640",
                                                "transformer.h.1.mlp.c_proj: 16448"});
}

TEST_CASE("a pattern makes units of the outermost modules that it matches, several patterns of the innermost") {
  CHECK(units_of("llama", "pattern:model.layers.*") ==
        Names{"root: 39360", "model.layers.0: 30848", "model.layers.1: 30848", "model.layers.2: 30848"});
  CHECK(units_of("llama", "pattern:*.1.mlp,model.layers.*") ==
        Names{"root: 39360", "model.layers.0: 30848", "model.layers.1: 12416", "model.layers.1.mlp: 18432",
              "model.layers.2: 30848"});
}

TEST_CASE("a pattern that no module matches is refused and told what modules are called") {
  const Graph graph = graph_of("llama");
  CHECK_THROWS_WITH_AS(lay_out_units(graph, wrapped("pattern:*.mlp,transformer.h.*")),
                       "--wrap pattern:transformer.h.*: no module is called so (one is model.layers.1.mlp.up_proj)",
                       InputError);
}

}  // namespace vramfit
