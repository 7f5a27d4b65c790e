#include "estimator/at_peak.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "model_specs/config.h"
#include "program/make_program.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

ModelSpec llama() { return parse_config(testing::small_model_text("llama"), "llama"); }

Estimate estimate_with(const std::string& gpus, const std::vector<std::pair<std::string, std::string>>& fields) {
  Job job = unresolved_job();
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  return estimate(llama(), job, parse_cluster(gpus), {.suggestions = false});
}

const HeldModule& module_called(const AtPeak& at_peak, const std::string& name) {
  const auto found = std::ranges::find(at_peak.modules, name, &HeldModule::name);
  REQUIRE(found != at_peak.modules.end());
  return *found;
}

}  // namespace

TEST_CASE("the module of a label is its parameter's, or what stands before the colon, and layers are one") {
  CHECK(module_in("adamw: exp_avg of model.layers.31.self_attn.q_proj.weight") == "layers.*.self_attn.q_proj");
  CHECK(module_in("layers.3: gathered") == "layers.*");
  CHECK(module_in("layers.3.mlp.glu: gradient") == "layers.*.mlp.glu");
  CHECK(module_in("lm_head.weight: reduce piece") == "lm_head");
  CHECK(module_in("transformer.h.0.attn.c_attn.bias: gradient") == "transformer.h.*.attn.c_attn");
  CHECK(module_in("inputs: ids") == "inputs");
  CHECK(module_in("cublas workspace") == "other");
  CHECK(module_in("layers.3.conv1: out") == "layers.*.conv1");
}

TEST_CASE("what lives at the peak is summed by module and by name, and what was freed before isn't there") {
  LedgerWriter writer;
  writer.set_phase(Phase::load, 0);
  writer.allocate(Bytes{100}, Category::parameters, writer.label("layers.0: shard"));
  writer.allocate(Bytes{100}, Category::parameters, writer.label("layers.1: shard"));
  writer.set_phase(Phase::forward, 1);
  const std::int64_t freed = writer.allocate(Bytes{50}, Category::activations, writer.label("layers.0.mlp: out"));
  writer.free(freed);
  writer.set_phase(Phase::backward, 1);
  writer.allocate(Bytes{60}, Category::gradients, writer.label("layers.1.mlp: gradient"));
  const AtPeak found = at_peak(writer.take(), Bytes{1});
  CHECK(found.phase == Phase::backward);
  CHECK(found.step == 1);
  CHECK(found.requested == Bytes{260});
  CHECK(found.tensors == 3);
  REQUIRE(found.modules.size() == 2);
  CHECK(found.modules[0].name == "layers.*");
  CHECK(found.modules[0].bytes == Bytes{260});
  CHECK(found.modules[1].name == "mlp");
  CHECK(found.modules[1].depth == 1);
  CHECK(found.modules[1].bytes == Bytes{60});
  REQUIRE(found.largest.size() == 2);
  CHECK(found.largest[0].name == "layers.*: shard");
  CHECK(found.largest[0].count == 2);
}

TEST_CASE("blocks count as the allocator rounds them, so many small ones may be the peak") {
  LedgerWriter writer;
  writer.set_phase(Phase::forward, 1);
  std::vector<std::int64_t> small;
  for (int i = 0; i < 10; ++i)
    small.push_back(writer.allocate(Bytes{1}, Category::temporaries, writer.label("small: x")));
  for (const std::int64_t id : small) writer.free(id);
  writer.set_phase(Phase::backward, 1);
  writer.allocate(Bytes{512}, Category::temporaries, writer.label("large: x"));
  const Ledger ledger = writer.take();
  CHECK(at_peak(ledger, Bytes{512}).phase == Phase::forward);
  CHECK(at_peak(ledger, Bytes{1}).phase == Phase::backward);
  CHECK(at_peak(Ledger{}, Bytes{1}).tensors == 0);
}

TEST_CASE("of real jobs the categories are those of the estimate's peak, and modules sum to the whole") {
  const std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> jobs{
      {"2xH100-80GB", {{"seq_len", "512"}}},
      {"2xH100-80GB", {{"seq_len", "512"}, {"grad_accum", "8"}, {"checkpointing", "full"}}},
      {"4xH100-80GB", {{"seq_len", "256"}, {"sharding", "no-shard"}, {"method", "lora"}}},
      {"1xH100-80GB", {{"seq_len", "512"}, {"runtime", "pytorch"}, {"modeling", "transformers"}}},
      {"2xH100-80GB",
       {{"seq_len", "512"}, {"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"attention", "flash"}}}};
  for (const auto& [gpus, fields] : jobs) {
    CAPTURE(fields.back().first);
    const Estimate e = estimate_with(gpus, fields);
    REQUIRE(e.verdict == Verdict::fits);
    const AtPeak found = at_peak(llama(), e, {});
    const Graph graph = training_graph(llama(), e.job);
    const FoldedPeaks folded = folded_peaks(
        program::make_program(
            {.graph = graph, .job = e.job, .device = e.cluster.card.device, .coords = {}, .run = {}, .labels = false}),
        Bytes{512});
    std::array<Bytes, kCategories> categories{};
    Bytes sum, top;
    for (const HeldTensors& held : found.largest) {
      categories[static_cast<std::size_t>(held.category)] += held.bytes;
      sum += held.bytes;
    }
    for (const HeldModule& module : found.modules) {
      if (module.depth == 0) top += module.bytes;
    }
    CHECK(categories == folded.categories);
    CHECK(sum == found.requested);
    CHECK(top == found.requested);
    CHECK(module_called(found, "layers.*").bytes > Bytes{0});
  }
}

}  // namespace vramfit
