#include "executor/run/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "executor/meter/arena.h"
#include "executor/meter/cuda_meter.h"
#include "executor/meter/managed_memory.h"
#include "executor/meter/meter.h"
#include "model_specs/graph.h"
#include "program/files/rank_json.h"
#include "program/stages/adapters.h"

namespace vramfit {

namespace {

std::vector<PhasePeak> phase_peaks(const std::vector<MeasuredPhase>& measured, bool is_cuda) {
  std::vector<PhasePeak> peaks;
  for (const MeasuredPhase& phase : measured) {
    const bool steady = phase.step > 1;
    auto found =
        std::ranges::find_if(peaks, [&](const PhasePeak& p) { return p.phase == phase.phase && p.steady == steady; });
    if (found == peaks.end()) {
      peaks.push_back({.phase = phase.phase, .steady = steady, .requested = {}, .allocated = {}, .reserved = {}});
      found = peaks.end() - 1;
    }
    found->requested = std::max(found->requested, phase.peak);
    found->allocated = std::max(found->allocated, is_cuda ? phase.allocated : phase.peak);
    found->reserved = std::max(found->reserved, is_cuda ? phase.reserved : phase.peak);
  }
  return peaks;
}

/// CPU ranks: the block, and what is beside it, are there from load on.
void reserve_arena(RankEstimate& rank, Bytes reserved) {
  rank.peak_reserved = reserved;
  for (PhasePeak& phase : rank.phases) phase.reserved = reserved;
  rank.breakdown.fragmentation = reserved - rank.peak_allocated;
}

}  // namespace

MeasuredRank measured_rank(const RankPlace& place, const Coords& coords, DeviceKind device, const Arena* arena) {
  Meter& meter = Meter::instance();
  MeasuredRank rank;
  RankEstimate& memory = rank.memory;
  memory.first_rank = memory.last_rank = place.rank;
  memory.coords = coords;
  memory.peak_requested = memory.peak_allocated = memory.peak_reserved = meter.peak();
  memory.breakdown.categories = meter.categories_at_peak();
  memory.phases = phase_peaks(meter.phases(), device == DeviceKind::cuda);
  if (device == DeviceKind::cuda) {
    add_cuda_peaks(memory);
    rank.pinned = pinned_host_memory();
    memory.managed = managed_memory();
  }
  if (arena != nullptr) {
    rank.arena = arena->report();
    if (device == DeviceKind::cpu) reserve_arena(memory, rank.arena->bytes + meter.peak_beside_arenas());
  }
  memory.total = memory.upper_bound = memory.peak_reserved + memory.breakdown.outside_allocator;
  rank.host = meter.host_peak();
  rank.peak_rss = resident_bytes().peak;
  return rank;
}

std::vector<MeasuredRank> gather_measured_ranks(ProcessGroups& groups, const MeasuredRank& own) {
  JsonWriter writer;
  writer.begin_object();
  write_rank_members(writer, own.memory);
  writer.member("pinned_bytes", own.pinned).member("host_bytes", own.host).member("peak_rss_bytes", own.peak_rss);
  write_arena(writer, own.arena);
  const std::string text = writer.end_object().take();
  std::vector<MeasuredRank> ranks;
  for (const std::string& other : groups.gather_texts("measurements", text)) {
    const JsonValue value = parse_json(other, "a rank's measurements");
    JsonObject object(value, "a rank's measurements");
    MeasuredRank rank;
    rank.memory = read_rank(object);
    rank.pinned = Bytes{object.integer("pinned_bytes", 0, std::numeric_limits<std::int64_t>::max())};
    rank.host = Bytes{object.integer("host_bytes", 0, std::numeric_limits<std::int64_t>::max())};
    rank.peak_rss = Bytes{object.integer("peak_rss_bytes", 0, std::numeric_limits<std::int64_t>::max())};
    rank.arena = read_arena(object);
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

RunEffects run_effects(const RunOptions& options) {
  return {.clip = options.train.clip > 0,
          .resumes = !options.save.resume.empty(),
          .saves = !options.save.directory.empty(),
          .saves_full = !options.save.full.empty(),
          .saves_adapters = !options.save.adapters.empty()};
}

RunRecord make_run_record(const PlanFile& plan, const RunOptions& options, const RunProgress& progress,
                          std::vector<MeasuredRank> ranks) {
  RunRecord record;
  record.model_name = plan.spec.name;
  for (const Parameter& parameter : training_graph(plan.spec, plan.job).parameters) {
    record.parameters += element_count(parameter);
  }
  record.job = plan.job;
  record.cluster = plan.cluster;
  record.device = progress.device;
  record.fingerprint = progress.fingerprint;
  record.effects = run_effects(options);
  record.weights = progress.weights;
  if (options.data.empty()) {
    record.data = options.device == "phantom" ? "none" : fmt::format("synthetic tokens (seed {})", options.train.seed);
  }
  for (const std::string& path : options.data) record.data += (record.data.empty() ? "" : ", ") + path;
  record.ranks = std::move(ranks);
  const auto largest =
      std::ranges::max_element(record.ranks, {}, [](const MeasuredRank& rank) { return rank.memory.total; });
  record.worst = static_cast<int>(largest - record.ranks.begin());
  double tokens = 0, seconds = 0;
  for (const StepResult& step : progress.steps) {
    record.step_seconds.push_back(step.seconds);
    if (progress.device == "phantom") continue;  // neither losses nor speeds are those of any card
    record.loss.push_back(step.loss);
    if (step.loss_scale > 0) record.loss_scale.push_back(step.loss_scale);
    if (step.skipped) record.skipped_steps.push_back(step.step);
    if (step.step == 1 && progress.steps.size() > 1) continue;
    tokens += static_cast<double>(step.tokens);
    seconds += step.seconds;
  }
  record.tokens_per_second = seconds > 0 ? tokens / seconds : 0;
  record.out_of_memory = progress.out_of_memory;
  record.stopped_at_retries = progress.stopped_at_retries;
  record.message = progress.message;
  return record;
}

void write_events(const Ledger& ledger, const std::string& directory, int rank) {
  std::vector<std::string> labels;
  for (const std::string& label : ledger.labels) labels.push_back(JsonWriter().text(label).take());
  for (std::string& label : labels) {
    while (!label.empty() && label.back() == '\n') label.pop_back();
  }
  std::string text;
  for (const Event& event : ledger.events) {
    text += fmt::format("{{\"label\": {}, \"category\": \"{}\", \"bytes\": {}, \"phase\": \"{}\", \"step\": {}}}\n",
                        labels[static_cast<std::size_t>(event.label)], category_name(event.category), event.bytes,
                        phase_name(event.phase), event.step);
  }
  std::error_code ignored;  // what can't be made can't be written to either
  std::filesystem::create_directories(directory, ignored);
  write_file(fmt::format("{}/rank{}.jsonl", directory, rank), text);
}

}  // namespace vramfit
