#include "tests/oracle/counted_job.h"

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/config.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/count.h"
#include "program/readers/host_bytes.h"
#include "program/stages/adapters.h"

namespace vramfit::testing {

CountedJob count_from_arguments(int argc, char** argv) {
  if (argc < 4) throw InputError("usage: CONFIG.JSON CLUSTER STEPS [FIELD=VALUE ...]");
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const ModelSpec spec = parse_config(text, argv[1]);
  RunEffects run;
  CountedJob counted{unresolved_job(), parse_cluster(argv[2]), {}, {}};
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "no-clip") {
      run.clip = false;
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    set_job_field(counted.job, job_field_named(name), word.substr(equals + 1), name);
  }
  std::vector<std::string> notes;
  counted.job = resolve_job(counted.job, spec, counted.cluster, notes);
  require_rules(counted.job, counted.cluster);
  const Graph graph = training_graph(spec, counted.job);
  counted.ledger = count(graph, counted.job, counted.cluster.card.device, {},
                         {.run = run, .steps = std::stoi(argv[3]), .abbreviate = false});
  counted.managed = managed_bytes(program::make_program({.graph = graph,
                                                         .job = counted.job,
                                                         .device = counted.cluster.card.device,
                                                         .coords = {},
                                                         .run = run,
                                                         .labels = false}));
  return counted;
}

}  // namespace vramfit::testing
