// Prints every event of a counted job: dump_events CONFIG.JSON CLUSTER STEPS [FIELD=VALUE ...]
// One JSON array a line: ["mark", "step 1"], ["+", bytes, id, stream, label], ["-", bytes, id, stream].
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "estimator/count.h"
#include "estimator/estimate.h"
#include "estimator/job_fields.h"
#include "model_specs/config.h"

namespace {

using vramfit::Event;

void print(const vramfit::Ledger& ledger) {
  int step = -1;
  for (const Event& event : ledger.events) {
    if (event.step != step) {
      step = event.step;
      fmt::print("[\"mark\", \"{}\"]\n", step == 0 ? "load" : fmt::format("step {}", step));
    }
    const int stream = static_cast<int>(event.stream);
    if (event.bytes > 0) {
      const nlohmann::json label = ledger.labels[static_cast<std::size_t>(event.label)];
      fmt::print("[\"+\", {}, {}, {}, {}]\n", event.bytes, event.id, stream, label.dump());
    } else {
      fmt::print("[\"-\", {}, {}, {}]\n", -event.bytes, event.id, stream);
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const vramfit::ModelSpec spec = vramfit::parse_config(text, argv[1]);
  const vramfit::Cluster cluster = vramfit::parse_cluster(argv[2]);
  vramfit::Job job = vramfit::unresolved_job();
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    set_job_field(job, vramfit::job_field_named(name), word.substr(equals + 1), name);
  }
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const vramfit::Graph graph = build_graph(spec, {});
  print(count(graph, job, cluster.card.device, {}, {.steps = std::stoi(argv[3])}));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
