// Predicted against published throughput (configs/published/throughput.json; docs/time-model.md has the table).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/sourced_figure.h"
#include "estimator/step_timer.h"
#include "job/job_fields.h"
#include "job/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"

namespace vramfit {
namespace {

const JsonValue& member(const JsonValue& object, std::string_view key) {
  return json_member(object, key, "throughput.json");
}

/// Predicted tokens per second and card, divided by what was published.
double predicted_share(const JsonValue& row) {
  const ModelSpec spec = catalog_spec(*find_in_catalog(member(row, "model").text));
  Cluster cluster = parse_cluster(member(row, "gpus").text);
  if (std::ranges::find(row.keys, "network") != row.keys.end()) set_network(cluster, member(row, "network").text);
  Job job = unresolved_job();
  const JsonValue& fields = member(row, "job");
  for (std::size_t i = 0; i < fields.keys.size(); ++i) {
    set_job_field(job, job_field_named(fields.keys[i]), fields.items[i].text, fields.keys[i]);
  }
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const double seconds = step_time(build_graph(spec, loss_options(job)), job, cluster).step_seconds;
  const double tokens = static_cast<double>(job.global_batch * job.sequence) / static_cast<double>(cluster.cards());
  return tokens / seconds / member(row, "tokens_per_second_per_gpu").real;
}

}  // namespace

TEST_CASE("predicted throughput is as near to published ones as docs/time-model.md says") {
  const std::string path = std::string(VRAMFIT_SOURCE_DIR) + "/configs/published/throughput.json";
  const JsonValue document = parse_json(read_file(path, kDataFile, 1 << 20), path);
  std::vector<double> errors;
  for (const JsonValue& row : member(document, "rows").items) {
    const double share = predicted_share(row);
    MESSAGE(member(row, "id").text, ": predicted / published ", share);
    errors.push_back(std::abs(share - 1));
  }
  REQUIRE(errors.size() >= 10);
  std::ranges::sort(errors);
  const double median = (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
  MESSAGE("median error ", median);
  CHECK(median < 0.18);
}

}  // namespace vramfit
