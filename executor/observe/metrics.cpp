#include "executor/observe/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/json/json_writer.h"
#include "base/process/standard_streams.h"
#include "base/text/system_reason.h"

namespace vramfit {

namespace {

/// Whether the file's last line was cut short, by a crash or a full disk.
bool ends_within_a_line(const std::string& path) {
  if (!names_a_file(path)) return false;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

JsonWriter line_of(const RunFacts& facts, const char* event) {
  JsonWriter writer(JsonForm::one_line);
  writer.begin_object().member("schema", "vramfit/metrics@1").member("event", event).member("rank", facts.rank);
  writer.member("device", facts.device);
  return writer;
}

}  // namespace

std::string run_line(const RunFacts& facts, double unix_seconds) {
  JsonWriter writer = line_of(facts, "run");
  writer.member("time", unix_seconds).member("model", facts.model).member("ranks", facts.ranks);
  writer.member("first_step", facts.first_step).member("steps", facts.steps).member("flops_per_step", facts.flops);
  writer.member("peak_flops", facts.peak_flops > 0 ? std::optional(facts.peak_flops) : std::nullopt);
  return writer.end_object().take();
}

std::string step_line(const RunFacts& facts, const StepReport& report) {
  const StepResult& r = report.result;
  const auto known = [&](bool is_known, double value) {
    return is_known && !report.phantom ? std::optional(value) : std::nullopt;
  };
  JsonWriter writer = line_of(facts, "step");
  writer.member("step", r.step);
  writer.member("loss", known(true, r.loss));
  writer.member("gradient_norm", known(report.clipped, r.gradient_norm));
  writer.member("loss_scale", known(r.loss_scale > 0, r.loss_scale));
  writer.member("skipped", r.skipped && !report.phantom);
  writer.member("learning_rate", r.learning_rate).member("tokens", r.tokens).member("seconds", r.seconds);
  writer.member("tokens_per_second", report.tokens_per_second);
  writer.member("mfu", report.mfu);
  writer.member("alloc_retries", report.retries).member("peak_requested_bytes", report.requested);
  writer.member("peak_allocated_bytes", report.allocated).member("peak_reserved_bytes", report.reserved);
  writer.key("phases").begin_array();
  for (const MeasuredPhase& phase : report.phases) {
    writer.begin_object().member("phase", phase_name(phase.phase)).member("peak_requested_bytes", phase.peak);
    writer.member("peak_allocated_bytes", phase.allocated).member("peak_reserved_bytes", phase.reserved).end_object();
  }
  return writer.end_array().end_object().take();
}

MetricsFile::MetricsFile(std::string path) : path_(std::move(path)), torn_(ends_within_a_line(path_)) {
  try {
    file_ = open_to_append(path_);
  } catch (const FaultError& error) {
    throw FaultError(std::string("--metrics: ") + error.what());
  }
}

MetricsFile::~MetricsFile() { ::close(file_); }

bool MetricsFile::append(const std::string& text) {
  const std::string line = fmt::format("{}{}", torn_ ? "\n" : "", text);
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(file_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  if (done == line.size()) return torn_ = false, true;
  torn_ = torn_ || done > 0;
  return false;
}

void MetricsFile::begin(const RunFacts& facts) {
  using Seconds = std::chrono::duration<double>;
  const double now = Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  if (append(run_line(facts, now))) return;
  throw FaultError(fmt::format("--metrics: {}: can't be written: {}", path_, system_reason(errno)));
}

void MetricsFile::step(const RunFacts& facts, const StepReport& report) {
  if (append(step_line(facts, report)) || std::exchange(warned_, true)) return;
  complain("warning", fmt::format("--metrics: {}: step {} could not be written: {}; training continues", path_,
                                  report.result.step, system_reason(errno)));
}

}  // namespace vramfit
