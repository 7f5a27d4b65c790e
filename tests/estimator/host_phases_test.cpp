#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "model_specs/config.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

RankEstimate rank_with(const std::string& gpus, const std::vector<std::pair<std::string, std::string>>& fields,
                       const RunEffects& run = {}) {
  Job job = unresolved_job();
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  const ModelSpec spec = parse_config(testing::small_model_text("llama"), "llama");
  const Estimate made = estimate(spec, job, parse_cluster(gpus), {.suggestions = false, .run = run});
  REQUIRE(made.verdict == Verdict::fits);
  return worst_rank(made);
}

Bytes host_of(const RankEstimate& rank, Phase phase, bool is_steady) {
  for (const PhasePeak& peak : rank.phases) {
    if (peak.phase == phase && peak.steady == is_steady) return peak.host;
  }
  return Bytes{-1};
}

Bytes most_of(const RankEstimate& rank) { return std::ranges::max_element(rank.phases, {}, &PhasePeak::host)->host; }

}  // namespace

TEST_CASE("host memory is told by phase, and the most of all phases is the rank's") {
  for (const char* offload : {"optimizer", "optimizer+gradients", "params", "activations"}) {
    CAPTURE(offload);
    const RankEstimate rank = rank_with("2xH100-80GB", {{"offload", offload}, {"checkpointing", "full"}});
    CHECK(rank.host > Bytes{});
    CHECK(most_of(rank) == rank.host);
  }
}

TEST_CASE("the engine makes all that it needs on the host while it loads") {
  for (const char* offload : {"activations", "optimizer"}) {
    CAPTURE(offload);
    const RankEstimate rank = rank_with("1xH100-80GB", {{"offload", offload}, {"checkpointing", "full"}});
    CHECK(host_of(rank, Phase::load, false) == rank.host);
    CHECK(host_of(rank, Phase::forward, true) == rank.host);
  }
}

TEST_CASE("saving tells what is there on the host meanwhile") {
  const RankEstimate rank = rank_with("2xH100-80GB", {{"offload", "optimizer"}}, {.saves_full = true});
  CHECK(host_of(rank, Phase::checkpoint_save, true) >= host_of(rank, Phase::load, false));
  CHECK(host_of(rank, Phase::forward, true) > Bytes{});
}

TEST_CASE("DeepSpeed's offloaded optimizer takes more while it updates than while it loads") {
  const RankEstimate zero =
      rank_with("2xH100-80GB", {{"runtime", "deepspeed"}, {"modeling", "transformers"}, {"offload", "optimizer"}});
  CHECK(most_of(zero) == zero.host);
  CHECK(host_of(zero, Phase::optimizer, true) > host_of(zero, Phase::load, false));
  const RankEstimate none = rank_with("2xH100-80GB", {});
  CHECK(most_of(none) == none.host);
}

}  // namespace vramfit
