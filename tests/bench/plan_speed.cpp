// Prints what plans of a few models cost: configurations decided, bounds, exact times and estimates, and processor
// time. With an argument: of the plans whose names contain it.
#include <fmt/format.h>
#include <ctime>
#include <string>
#include <string_view>

#include "base/process/keep_memory.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"
#include "planner/plan.h"

namespace {

using namespace vramfit;  // NOLINT(google-build-using-namespace): a program of its own

struct Case {
  const char* name;
  const char* model;
  const char* cluster;
  std::int64_t global_batch, sequence;
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void plan(const Case& c) {
  PlanRequest request{.spec = catalog_spec(*find_in_catalog(c.model)),
                      .job = unresolved_job(),
                      .fixed = {"global_batch", "seq_len"},
                      .cluster = parse_cluster(c.cluster),
                      .allowed = {}};
  request.job.global_batch = c.global_batch;
  request.job.sequence = c.sequence;
  const double begin = processor_seconds();
  const Plan found = make_plan(request);
  const double seconds = processor_seconds() - begin;
  const SearchCounts& s = found.search;
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {:.0f} ms |\n", c.name, s.configurations, s.ruled_out, s.bounds,
             s.times, s.estimates, found.alternatives.size(), 1e3 * seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  keep_freed_memory();
  fmt::print("| plan | configurations | ruled out | bounds | times | estimates | alternatives | processor time |\n");
  fmt::print("|-|-|-|-|-|-|-|-|\n");
  for (const Case& c :
       {Case{"Llama-3.1-8B on 8xH100-80GB", "meta-llama/Llama-3.1-8B", "8xH100-80GB", 64, 8192},
        Case{"Llama-3.1-70B on 2x8xH200", "meta-llama/Llama-3.1-70B", "2x8xH200", 256, 8192},
        Case{"Llama-3.1-405B on 64x8xH100-80GB", "meta-llama/Llama-3.1-405B", "64x8xH100-80GB", 1024, 8192},
        Case{"Llama-3.1-70B on 2x8xH100-80GB: no plan", "meta-llama/Llama-3.1-70B", "2x8xH100-80GB", 256, 4096},
        Case{"Llama-3.1-70B on 8xH100-80GB: no plan", "meta-llama/Llama-3.1-70B", "8xH100-80GB", 256, 4096}}) {
    if (std::string_view(c.name).find(wanted) != std::string_view::npos) plan(c);
  }
}
