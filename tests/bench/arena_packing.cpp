// What an arena's packing costs, and how close it comes to the bound; graph and program given.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "job/fields/job_field_text.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/arena/script.h"
#include "program/lowering/lower.h"

namespace vramfit {
namespace {

void measure(const std::string& model, const std::string& gpus, std::int64_t accumulation,
             const Checkpointing& checkpointing) {
  const ModelSpec spec = catalog_spec(*find_in_catalog(model));
  const Cluster cluster = parse_cluster(gpus);
  Job job = unresolved_job();
  job.accumulation = accumulation;
  job.checkpointing = checkpointing;
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const Graph graph = build_graph(spec, loss_options(job));
  const program::Program program =
      lower(program::LowerInputs{.graph = graph, .job = job, .device = cluster.card.device, .coords = {}});
  const std::vector<arena::Lifetime> lifetimes = arena::lifetimes_of(program);
  const auto start = std::chrono::steady_clock::now();
  const arena::Packing packing = arena::pack(lifetimes, arena::kDeviceGranule);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{} on {}, {} micro-batches, checkpointing {}: {} blocks, {} of {}: {:.3f} % above the bound, by {}, {:.3f} s\n",
      model, gpus, accumulation, get_checkpointing(job), lifetimes.size(), format_gib(packing.size),
      format_gib(packing.bound),
      100 * static_cast<double>((packing.size - packing.bound).n) / static_cast<double>(packing.bound.n), packing.order,
      seconds);
}

}  // namespace
}  // namespace vramfit

int main() {
  for (const vramfit::Checkpointing& checkpointing :
       {vramfit::Checkpointing{vramfit::NoCheckpointing{}}, vramfit::Checkpointing{vramfit::FullCheckpointing{}}}) {
    vramfit::measure("meta-llama/Llama-3.1-8B", "8xH100-80GB", 1, checkpointing);
    vramfit::measure("meta-llama/Llama-3.1-8B", "8xH100-80GB", 4, checkpointing);
    vramfit::measure("meta-llama/Llama-3.1-70B", "2x8xH100-80GB", 1, checkpointing);
    vramfit::measure("meta-llama/Llama-3.1-405B", "64x8xH100-80GB", 1, checkpointing);
    vramfit::measure("meta-llama/Llama-3.1-405B", "64x8xH100-80GB", 64, checkpointing);
  }
  return 0;
}
