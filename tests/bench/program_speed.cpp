// What a program costs, beside the targets that docs/program.md gives: processor time of one thread, graph given and
// nothing kept from another job unless a column says so, best of 100; and its size. Prints only: machines differ.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process/keep_memory.h"
#include "estimator/estimate.h"
#include "estimator/time/seconds.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "program/lowering/lower.h"
#include "program/readers/bytes.h"
#include "program/readers/peaks.h"

namespace vramfit {
namespace {

double processor_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

template <typename Work>
double best_milliseconds(const Work& work) {
  double best = 1e30;
  for (int i = 0; i < 100; ++i) {
    const double start = processor_milliseconds();
    work();
    best = std::min(best, processor_milliseconds() - start);
  }
  return best;
}

template <typename T>
std::size_t bytes_of(const std::vector<T>& list) {
  return list.size() * sizeof(T);
}

std::size_t bytes_of(const program::Code& code) {
  return bytes_of(code.buffers) + bytes_of(code.instructions) + bytes_of(code.accesses) + bytes_of(code.inside) +
         bytes_of(code.work) + bytes_of(code.bindings) + bytes_of(code.offsets);
}

std::size_t bytes_of(const program::Program& program) {
  std::size_t size = bytes_of(program.main) + bytes_of(program.views);
  for (const program::Block& block : program.blocks) size += bytes_of(block.code);
  for (const std::string& label : program.labels) size += sizeof(label) + label.size();
  return size;
}

void print(std::string_view what, double figure, std::string_view unit, std::optional<double> target = {}) {
  fmt::print("  {:<58} {:8.3f} {}", what, figure, unit);
  if (target) fmt::print(", target {}: {}", *target, figure <= *target ? "met" : "MISSED");
  fmt::print("\n");
}

struct Targets {
  double peaks = 0;  // ms, and so are the others
  std::optional<double> seconds = {}, events = {}, replay = {}, mebibytes = {};
};

void measure(const std::string& model, const std::string& gpus, std::int64_t accumulation, const Targets& targets) {
  const ModelSpec spec = catalog_spec(*find_in_catalog(model));
  const Cluster cluster = parse_cluster(gpus);
  Job job = unresolved_job();
  job.accumulation = accumulation;
  job.checkpointing = FullCheckpointing{};
  std::vector<std::string> notes;
  job = resolve_job(job, spec, cluster, notes);
  const Graph graph = build_graph(spec, loss_options(job));
  const program::LowerInputs named{.graph = graph, .job = job, .device = cluster.card.device, .coords = {}};
  program::LowerInputs inputs = named;
  inputs.labels = false;
  const program::Program program = lower(named);
  fmt::print("{} on {}, {} micro-batches: {} blocks, {} instructions, {} events in load and two steps\n", model, gpus,
             accumulation, program.blocks.size(), program.main.instructions.size(),
             ledger_of(program, {}).events.size());
  print("peaks by phase and category, from the graph",
        best_milliseconds([&] { (void)folded_peaks(lower(inputs), Bytes{512}); }), "ms", targets.peaks);
  print("seconds, from the graph", best_milliseconds([&] { (void)seconds_of(lower(inputs), cluster); }), "ms",
        targets.seconds);
  print("all events of load and two steps, from the graph",
        best_milliseconds([&] { (void)ledger_of(lower(named), {}); }), "ms", targets.events);
  print("the same with replay",
        best_milliseconds([&] { (void)fold(ledger_of(lower(named), {}), job, cluster.card.device); }), "ms",
        targets.replay);
  const UnitLayout layout = lay_out_units(graph, job);
  const SharedTapes tapes = make_shared_tapes(tape_inputs(graph, job, cluster.card.device));
  program::LowerInputs in_search = inputs;
  in_search.layout = &layout;
  in_search.tapes = &tapes;
  print("unit layout", best_milliseconds([&] { (void)lay_out_units(graph, job); }), "ms");
  print("tapes", best_milliseconds([&] { (void)make_shared_tapes(tape_inputs(graph, job, cluster.card.device)); }),
        "ms");
  print("lowering, with labels", best_milliseconds([&] { (void)lower(named); }), "ms");
  print("lowering, without", best_milliseconds([&] { (void)lower(inputs); }), "ms");
  print("lowering in a search: unit layout and tapes kept", best_milliseconds([&] { (void)lower(in_search); }), "ms");
  print("peaks of the program", best_milliseconds([&] { (void)folded_peaks(program, Bytes{512}); }), "ms");
  print("seconds of the program", best_milliseconds([&] { (void)seconds_of(program, cluster); }), "ms");
  print("events of the program", best_milliseconds([&] { (void)ledger_of(program, {}); }), "ms");
  print("size of the program", static_cast<double>(bytes_of(program)) / (1 << 20), "MiB", targets.mebibytes);
}

}  // namespace
}  // namespace vramfit

int main() {
  vramfit::keep_freed_memory();  // as vramfit does
  vramfit::measure("meta-llama/Llama-3.1-8B", "8xH100-80GB", 1, {.peaks = 0.2});
  vramfit::measure("meta-llama/Llama-3.1-70B", "2x8xH100-80GB", 1, {.peaks = 0.5});
  vramfit::measure("meta-llama/Llama-3.1-405B", "64x8xH100-80GB", 64,
                   {.peaks = 1, .seconds = 1, .events = 20, .replay = 50, .mebibytes = 4e6 / (1 << 20)});
}
