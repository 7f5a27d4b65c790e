#include "tests/support/job_line.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "model_specs/config.h"
#include "program/not_modelled.h"
#include "program/stages/adapters.h"
#include "tests/support/config_file.h"

namespace vramfit::testing {

namespace {

std::string with_layers(std::string config, const std::string& layers) {
  for (const char* key : {"\"num_hidden_layers\": ", "\"n_layer\": "}) {
    const std::size_t found = config.find(key);
    if (found == std::string::npos) continue;
    const std::size_t begin = found + std::string(key).size();
    config.replace(begin, config.find_first_not_of("0123456789", begin) - begin, layers);
  }
  return config;
}

ModelSpec model(const std::string& text) {
  const std::size_t slash = text.find('/');
  const std::string name = text.substr(0, slash);
  if (std::ranges::count(small_models(), name) > 0) {
    const std::string config = small_model_text(name);
    return parse_config(slash == std::string::npos ? config : with_layers(config, text.substr(slash + 1)), name);
  }
  const CatalogEntry* entry = find_in_catalog(name);
  if (entry == nullptr) throw InputError("no model " + name);
  return catalog_spec(*entry);
}

Device device(const std::string& text) {
  int first = 0, second = 0;
  char colon = 0;
  std::istringstream numbers(text.substr(text.find(':') + 1));
  numbers >> first >> colon >> second;
  if (text.starts_with("cpu:")) {
    return {.kind = DeviceKind::cpu, .name = "cpu", .threads = first, .onednn_bf16 = second != 0};
  }
  return {.kind = DeviceKind::cuda, .name = "card", .compute_capability = first, .sm_count = second};
}

Cluster cluster(const std::string& shape, const std::string& device_text) {
  Cluster cluster;
  char times = 0;
  std::istringstream(shape) >> cluster.nodes >> times >> cluster.cards_per_node;
  cluster.card.device = device(device_text);
  cluster.card.memory = 100000 * kGiB;
  cluster.card.bf16 = cluster.is_cpu() || cluster.card.device.compute_capability >= 80;
  return cluster;
}

}  // namespace

JobLine parse_job_line(const std::string& text) {
  JobLine line;
  std::istringstream words(text);
  words >> line.model >> line.shape >> line.device;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    line.settings.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return line;
}

std::string text_of(const JobLine& line) {
  std::string text = line.model + " " + line.shape + " " + line.device;
  for (const auto& [field, value] : line.settings) text.append(" ").append(field).append("=").append(value);
  return text;
}

ResolvedJob resolved(const JobLine& line) {
  ResolvedJob made{
      .spec = model(line.model), .cluster = cluster(line.shape, line.device), .job = unresolved_job(), .graph = {}};
  for (const auto& [field, value] : line.settings) {
    if (field == "clip") {
      made.clip = value != "off";
    } else {
      set_job_field(made.job, job_field_named(field), value, field);
    }
  }
  std::vector<std::string> notes;
  made.job = resolve_job(made.job, made.spec, made.cluster, notes);
  require_rules(made.job, made.cluster);
  made.graph = training_graph(made.spec, made.job);
  return made;
}

}  // namespace vramfit::testing
