#include "executor/observe/run_observers.h"

#include <algorithm>

#include "estimator/count.h"
#include "estimator/model_flops.h"
#include "executor/meter/cuda_meter.h"

namespace vramfit {

namespace {

/// Of one rank and step.
double flops_of_step(const ObservedRun& run) {
  const Job& job = run.plan.job;
  const double flops = training_flops({.graph = run.graph,
                                       .precision = job.precision,
                                       .device = run.device,
                                       .attention = job.attention,
                                       .deterministic = job.deterministic,
                                       .shape = {job.micro_batch, job.sequence},
                                       .trainable = trainable_parameters(run.graph, job)});
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

}  // namespace

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

void RunObservers::step_ends(const StepResult& result) {
  if (!progress_ && !metrics_) return;
  const StepReport report = report_of(result);
  if (progress_) progress_->show(report);
  if (metrics_) metrics_->step(facts_, report);
}

void RunObservers::finish() {
  if (progress_) progress_->finish();
}

}  // namespace vramfit
