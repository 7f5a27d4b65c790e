// Predicted against published throughput (configs/published/throughput.json; docs/time-model.md has the table).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/sourced_figure.h"
#include "estimator/time/step_timer.h"
#include "job/fields/job_fields.h"
#include "job/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/not_modelled.h"

namespace vramfit {
namespace {

const JsonValue& member(const JsonValue& object, std::string_view key) {
  return json_member(object, key, "throughput.json");
}

using Fields = std::vector<std::pair<std::string, std::string>>;

/// Predicted tokens per second and card, divided by what was published. `more`: fields beside the row's.
double predicted_share(const JsonValue& row, const Fields& more = {}) {
  const ModelSpec spec = catalog_spec(*find_in_catalog(member(row, "model").text));
  Cluster cluster = parse_cluster(member(row, "gpus").text);
  const auto has = [&](std::string_view key) { return std::ranges::find(row.keys, key) != row.keys.end(); };
  if (has("network")) set_network(cluster, member(row, "network").text);
  if (has("memory_bandwidth_gbs")) cluster.card.memory_bandwidth = 1e9 * member(row, "memory_bandwidth_gbs").real;
  Job job = unresolved_job();
  for (const auto& [name, value] : more) set_job_field(job, job_field_named(name), value, name);
  const JsonValue& fields = member(row, "job");
  for (std::size_t i = 0; i < fields.keys.size(); ++i) {
    set_job_field(job, job_field_named(fields.keys[i]), fields.items[i].text, fields.keys[i]);
  }
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  require_rules(job, cluster);
  const double seconds = step_time(build_graph(spec, loss_options(job)), job, cluster).step_seconds;
  const double tokens = static_cast<double>(job.global_batch * job.sequence) / static_cast<double>(cluster.cards());
  return tokens / seconds / member(row, "tokens_per_second_per_gpu").real;
}

JsonValue published() {
  const std::string path = std::string(VRAMFIT_SOURCE_DIR) + "/configs/published/throughput.json";
  return parse_json(read_file(path, kDataFile, 1 << 20), path);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace

TEST_CASE("predicted throughput is as near to published ones as docs/time-model.md says") {
  const JsonValue document = published();
  std::vector<double> errors;
  for (const JsonValue& row : member(document, "rows").items) {
    const double share = predicted_share(row);
    MESSAGE(member(row, "id").text, ": predicted / published ", share);
    errors.push_back(std::abs(share - 1));
  }
  REQUIRE(errors.size() >= 10);
  MESSAGE("median error ", median(errors));
  CHECK(median(errors) < 0.16);
}

TEST_CASE("rows of eager torchtitan are predicted nearer to what was published under PyTorch's FSDP2") {
  const JsonValue document = published();
  std::vector<double> own, fsdp2;
  for (const JsonValue& row : member(document, "rows").items) {
    if (!member(row, "differs").text.starts_with("eager torchtitan")) continue;  // others were compiled
    const double share =
        predicted_share(row, {{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"attention", "flash"}});
    MESSAGE(member(row, "id").text, ": predicted / published ", share);
    fsdp2.push_back(std::abs(share - 1));
    own.push_back(std::abs(predicted_share(row) - 1));
  }
  REQUIRE(fsdp2.size() == 4);
  MESSAGE("median error ", median(fsdp2), ", of the same rows under --runtime vramfit ", median(own));
  CHECK(median(fsdp2) < median(own));
}

}  // namespace vramfit
