// What a program costs: lowering (in a search, with unit layout and tapes given and without labels), folded peaks,
// seconds, all events, and its size; best of several, one thread, graph given.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "estimator/seconds.h"
#include "job/fields/job_fields.h"
#include "job/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/lowering/lower.h"
#include "program/readers/bytes.h"
#include "program/readers/peaks.h"

namespace vramfit {
namespace {

template <typename Work>
double best_milliseconds(int times, const Work& work) {
  double best = 1e30;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

template <typename T>
std::size_t bytes_of(const std::vector<T>& list) {
  return list.size() * sizeof(T);
}

std::size_t bytes_of(const program::Code& code) {
  return bytes_of(code.buffers) + bytes_of(code.instructions) + bytes_of(code.accesses) + bytes_of(code.inside) +
         bytes_of(code.work) + bytes_of(code.bindings);
}

void measure(const std::string& model, const std::string& gpus, std::int64_t accumulation) {
  const ModelSpec spec = catalog_spec(*find_in_catalog(model));
  const Cluster cluster = parse_cluster(gpus);
  Job job = unresolved_job();
  job.accumulation = accumulation;
  job.checkpointing = Checkpointing::full;
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const Graph graph = build_graph(spec, loss_options(job));
  const program::LowerInputs inputs{.graph = graph, .job = job, .device = cluster.card.device, .coords = {}};
  const program::Program program = lower(inputs);
  std::size_t size = bytes_of(program.main);
  for (const program::Block& block : program.blocks) size += bytes_of(block.code);
  std::size_t events = 0;
  const double lowering = best_milliseconds(100, [&] { (void)lower(inputs); });
  const UnitLayout layout = lay_out_units(graph, job);
  const SharedTapes tapes = make_shared_tapes(tape_inputs(graph, job, cluster.card.device));
  program::LowerInputs in_search = inputs;
  in_search.layout = &layout;
  in_search.tapes = &tapes;
  in_search.labels = false;
  const double searching = best_milliseconds(100, [&] { (void)lower(in_search); });
  const double peaks = best_milliseconds(100, [&] { (void)folded_peaks(program, Bytes{512}); });
  const double seconds = best_milliseconds(100, [&] { (void)seconds_of(program, cluster); });
  const double expanded = best_milliseconds(20, [&] { events = ledger_of(program, {}).events.size(); });
  fmt::print(
      "{} on {}, {} micro-batches: lowering {:.2f} ms, in a search {:.2f} ms, folded peaks {:.2f} ms, seconds {:.2f} "
      "ms, {} events {:.2f} ms; "
      "{} blocks, "
      "{} instructions, {:.2f} MiB\n",
      model, gpus, accumulation, lowering, searching, peaks, seconds, events, expanded, program.blocks.size(),
      program.main.instructions.size(), static_cast<double>(size) / (1 << 20));
}

}  // namespace
}  // namespace vramfit

int main() {
  vramfit::measure("meta-llama/Llama-3.1-8B", "8xH100-80GB", 1);
  vramfit::measure("meta-llama/Llama-3.1-70B", "2x8xH100-80GB", 1);
  vramfit::measure("meta-llama/Llama-3.1-405B", "64x8xH100-80GB", 64);
}
