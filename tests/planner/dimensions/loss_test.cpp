#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/estimate.h"
#include "estimator/time/step_timer.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "planner/dimensions/dimensions.h"
#include "planner/search/space.h"
#include "program/stages/adapters.h"
#include "tests/planner/requests.h"

namespace vramfit {

namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

const ModelSpec& a_model() {
  static const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  return spec;
}

Job job_of(const Cluster& cluster, const Fields& fields) {
  Job job = unresolved_job();
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  std::vector<std::string> notes;
  return resolve_job(job, a_model(), cluster, notes);
}

/// The choices of --loss, as text.
std::vector<std::string> choices_of(const Cluster& cluster, const Fields& fields) {
  const auto row = std::ranges::find(dimensions(), "loss", &Dimension::name);
  const SearchSpace space{.spec = a_model(), .cluster = cluster, .efficiency = efficiency_of(cluster)};
  std::vector<std::string> texts;
  for (const Job& job : row->choices(job_of(cluster, fields), space)) {
    texts.push_back(job_field_named("loss").get(job));
  }
  return texts;
}

bool has_forward(const std::vector<std::string>& texts) {
  return std::ranges::any_of(texts, [](const std::string& text) { return text.starts_with("chunked-forward:"); });
}

struct Figures {
  Bytes loss, most;  // requested
  double seconds = 0;
};

Figures figures_of(const Cluster& cluster, Fields fields, const std::string& loss) {
  fields.emplace_back("loss", loss);
  const Job job = job_of(cluster, fields);
  const Graph graph = training_graph(a_model(), job);
  const RankEstimate rank = estimate_rank(graph, job, cluster, {});
  Figures figures{.loss = {}, .most = rank.peak_requested, .seconds = step_time(graph, job, cluster).step_seconds};
  for (const PhasePeak& peak : rank.phases) {
    if (peak.phase == Phase::loss) figures.loss = std::max(figures.loss, peak.requested);
  }
  return figures;
}

}  // namespace

TEST_CASE("gradients made in forward are a choice where the last layer is gathered behind the head") {
  const Cluster cluster = parse_cluster("8xH100-80GB");
  CHECK(has_forward(choices_of(cluster, {})));
  CHECK(has_forward(choices_of(cluster, {{"reshard", "always"}})));
  for (const Fields& fields :
       {Fields{{"reshard", "last-kept"}}, Fields{{"reshard", "never"}}, Fields{{"sharding", "shard-grad-op"}},
        Fields{{"sharding", "no-shard"}}, Fields{{"wrap", "none"}}}) {
    CHECK_FALSE(has_forward(choices_of(cluster, fields)));
  }
  CHECK_FALSE(has_forward(choices_of(parse_cluster("1xH100-80GB"), {})));
  CHECK(has_forward(choices_of(parse_cluster("1xH100-80GB"), {{"offload", "params"}})));
}

TEST_CASE("they save that layer while the loss is computed, and leave its gather less to hide behind") {
  const Cluster cluster = parse_cluster("8xH100-80GB");
  const Fields fields{{"seq_len", "8192"}, {"checkpointing", "full"}};
  const Figures backward = figures_of(cluster, fields, "chunked:2"),
                forward = figures_of(cluster, fields, "chunked-forward:2");
  constexpr std::int64_t kLayer = 2 * 218'112'000;  // bytes of a layer's parameters, in bf16
  const std::int64_t saved = (backward.loss - forward.loss).n;
  CHECK(saved > kLayer - kLayer / 10);
  CHECK(saved < kLayer + kLayer / 10);
  CHECK(forward.most <= backward.most);
  CHECK(forward.seconds > backward.seconds);
  CHECK(forward.seconds < 1.001 * backward.seconds);
}

}  // namespace vramfit
