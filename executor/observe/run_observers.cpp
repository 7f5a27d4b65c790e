#include "executor/observe/run_observers.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "executor/meter/cuda_meter.h"
#include "executor/observe/memory_snapshot.h"
#include "executor/observe/phase_table.h"
#include "program/model_flops.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

constexpr std::size_t kSnapshotEvents = 200'000;  // some 15 MB; more is past what the viewer shows with ease

/// Of one rank and step.
double flops_of_step(const ObservedRun& run) {
  const Job& job = run.plan.job;
  const double flops = training_flops(run.graph, trainable_parameters(run.graph, job), {job.micro_batch, job.sequence});
  return flops * static_cast<double>(job.accumulation);
}

/// Of the card that runs; of the plan's where the catalog doesn't know how CUDA names it. 0: not known.
double peak_of_card(const ObservedRun& run) {
  if (run.device.kind == DeviceKind::cpu || run.phantom) return 0;
  const Card* card = card_with_cuda_name(run.device.name);
  if (card == nullptr && run.plan.cluster.card.cuda_name.empty()) card = &run.plan.cluster.card;
  return card == nullptr ? 0 : peak_flops(*card, run.plan.job.precision.compute);
}

std::string device_text(const ObservedRun& run) {
  if (run.phantom) return "phantom";
  return run.device.kind == DeviceKind::cpu ? "cpu" : "cuda";
}

std::vector<std::string> unit_names(const UnitLayout& layout) {
  std::vector<std::string> names;
  for (const Unit& unit : layout.units) names.push_back(unit.name);
  return names;
}

/// Throws FaultError when `path` can't be written, before anything is worth keeping.
void check_writable(const char* flag, const std::string& path) {
  const std::string why = why_not_writable(path);
  if (!why.empty()) throw FaultError(fmt::format("{}: {}: can't be written: {}", flag, printable(path), why));
}

/// Never throws for want of room: what was trained is worth more.
void write_or_warn(const char* flag, const std::string& path, const std::string& text) {
  try {
    write_file(path, text);
  } catch (const FaultError& error) {
    complain("warning", fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace

std::string path_of_rank(const std::string& path, int rank, int ranks) {
  if (ranks == 1) return path;
  if (!names_a_file(path)) return rank == 0 ? path : "";
  const std::filesystem::path whole(path);
  const std::string name = fmt::format("{}.rank{}{}", whole.stem().string(), rank, whole.extension().string());
  return (whole.parent_path() / name).string();
}

RunObservers::RunObservers(const ObservedRun& run) : run_(run) {
  facts_ = {.model = run.plan.spec.name,
            .device = device_text(run),
            .rank = run.place.rank,
            .ranks = run.place.world,
            .first_step = 1,
            .steps = run.options.train.steps,
            .flops = flops_of_step(run),
            .peak_flops = peak_of_card(run)};
  if (run.reports && !run.options.observe.metrics.empty()) {
    metrics_ = std::make_unique<MetricsFile>(run.options.observe.metrics);
  }
  trace_path_ = file_of_rank(run.options.observe.trace);
  snapshot_path_ = file_of_rank(run.options.observe.snapshot);
  if (!trace_path_.empty()) {
    check_writable("--trace", trace_path_);
    const bool is_cuda = run.device.kind == DeviceKind::cuda;
    trace_ =
        std::make_unique<ChromeTrace>(TraceInputs{.graph = run.graph,
                                                  .units = unit_names(lay_out_units(run.graph, run.plan.job)),
                                                  .device = facts_.device,
                                                  .rank = run.place.rank,
                                                  .memory = [is_cuda]() -> std::pair<Bytes, Bytes> {
                                                    if (!is_cuda)
                                                      return {Meter::instance().current(), Meter::instance().current()};
                                                    const DeviceMemory memory = device_memory();
                                                    return {memory.allocated, memory.reserved};
                                                  }});
  }
  if (!snapshot_path_.empty()) {
    check_writable("--snapshot", snapshot_path_);
    Meter::instance().keep_history(kSnapshotEvents);
  }
}

std::string RunObservers::file_of_rank(const std::string& path) const {
  return path.empty() ? "" : path_of_rank(path, run_.place.rank, run_.options.ghosts ? 1 : run_.place.world);
}

void RunObservers::begin(std::int64_t first_step) {
  facts_.first_step = first_step;
  if (run_.reports) progress_ = std::make_unique<Progress>(run_.options.observe.progress, first_step, facts_.steps);
  if (metrics_) metrics_->begin(facts_);
}

StepReport RunObservers::report_of(const StepResult& result) const {
  StepReport report{
      .result = result, .phantom = run_.phantom, .clipped = run_.options.train.clip > 0 || scales_loss(run_.plan.job)};
  if (!run_.phantom && result.seconds > 0) {
    report.tokens_per_second = static_cast<double>(result.tokens) / result.seconds;
    if (facts_.peak_flops > 0) report.mfu = facts_.flops / result.seconds / facts_.peak_flops;
  }
  Meter& meter = Meter::instance();
  report.phases = meter.phases_of(static_cast<int>(result.step));
  report.run_peak = meter.peak();
  const bool is_cuda = run_.device.kind == DeviceKind::cuda;
  for (MeasuredPhase& phase : report.phases) {
    if (!is_cuda) phase.allocated = phase.reserved = phase.peak;
    report.requested = std::max(report.requested, phase.peak);
    report.allocated = std::max(report.allocated, phase.allocated);
    report.reserved = std::max(report.reserved, phase.reserved);
  }
  if (is_cuda) report.retries = device_memory().retries;
  return report;
}

void RunObservers::step_begins(std::int64_t step) {
  tracing_ = trace_ && run_.options.observe.trace_steps.holds(step);
  if (tracing_) trace_->step_begins(step);
}

void RunObservers::step_ends(const StepResult& result) {
  if (tracing_) trace_->step_ends(result);
  tracing_ = false;
  if (!progress_ && !metrics_) return;
  const StepReport report = report_of(result);
  if (progress_) progress_->show(report);
  if (metrics_) metrics_->step(facts_, report);
}

void RunObservers::instruction_begins(const Instruction& instruction, Phase phase) {
  if (tracing_) trace_->instruction_begins(instruction, phase);
}

void RunObservers::instruction_ends() {
  if (tracing_) trace_->instruction_ends();
}

void RunObservers::op_begins(int segment, int op) {
  if (tracing_) trace_->op_begins(segment, op);
}

void RunObservers::op_ends() {
  if (tracing_) trace_->op_ends();
}

std::int64_t RunObservers::collective_begins(std::string_view what, std::string_view group, Bytes bytes) {
  return tracing_ ? trace_->collective_begins(what, group, bytes) : 0;
}

void RunObservers::collective_ends(std::int64_t id) {
  if (trace_) trace_->collective_ends(id);
}

void RunObservers::finish() {
  tracing_ = false;
  if (progress_) progress_->finish();
  if (trace_) write_or_warn("--trace", trace_path_, trace_->json());
  if (!snapshot_path_.empty()) write_snapshot();
}

void RunObservers::write_snapshot() {
  const bool is_cuda = run_.device.kind == DeviceKind::cuda;
  const MemoryHistory history = Meter::instance().history();
  Meter::instance().keep_history(0);
  const MemorySnapshot snapshot{.history = history,
                                .segments = is_cuda ? cuda_segments() : cpu_segments(history),
                                .device = is_cuda ? run_.place.local_rank : 0,
                                .is_cuda = is_cuda,
                                .settings = run_.plan.job.allocator};
  std::ostringstream text;
  write_memory_snapshot(snapshot, text);
  write_or_warn("--snapshot", snapshot_path_, text.str());
}

/// On phantom GPUs `vramfit run` prints the whole comparison.
void RunObservers::show_phases(const RankEstimate& measured) const {
  if (!run_.reports || run_.phantom || run_.options.observe.progress == ProgressStyle::none) return;
  const RankEstimate* predicted = prediction_of(run_.plan.predicted_ranks, run_.place.rank);
  std::fputs(phase_table(measured, predicted, run_.device.kind == DeviceKind::cpu).c_str(), stderr);
}

}  // namespace vramfit
