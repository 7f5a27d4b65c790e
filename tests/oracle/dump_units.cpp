// Prints the unit of every parameter of a config.json under a wrapping, for the comparison with PyTorch's policies:
//   dump_units CONFIG WRAP...    each wrapping headed by "== WRAP", then "PARAMETER UNIT" a line
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "job/fields/job_fields.h"
#include "model_specs/config.h"
#include "program/stages/wrapping.h"

int main(int argc, char** argv) try {
  using namespace vramfit;  // NOLINT(google-build-using-namespace): one short program
  if (argc < 3) {
    std::fputs("dump_units CONFIG WRAP...\n", stderr);
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Graph graph = build_graph(parse_config(text, argv[1]), {});
  for (int i = 2; i < argc; ++i) {
    Job job;
    set_job_field(job, job_field_named("wrap"), argv[i], "wrap");
    fmt::print("== {}\n", argv[i]);
    const std::vector<std::string> units = unit_names(graph, job);
    for (std::size_t p = 0; p < units.size(); ++p) fmt::print("{} {}\n", graph.parameters[p].name, units[p]);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
