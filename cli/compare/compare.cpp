#include "cli/compare/compare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/job_fields.h"

namespace vramfit {
namespace {

void check_same_job(const PlanFile& plan, const RunRecord& run) {
  if (plan.spec.name != run.model_name) {
    throw InputError(fmt::format("the plan is for {}, the run was of {}: compare a run with the plan it ran",
                                 printable(plan.spec.name), printable(run.model_name)));
  }
  if (plan.cluster.text != run.cluster.text) {
    throw InputError(fmt::format("the plan is for {}, the run was on {}: compare a run with the plan it ran",
                                 printable(plan.cluster.text), printable(run.cluster.text)));
  }
  for (const JobField& field : job_fields()) {
    const std::string planned = field.get(plan.job), ran = field.get(run.job);
    if (planned == ran) continue;
    throw InputError(fmt::format("{} is {} in the plan and {} in the run: compare a run with the plan it ran",
                                 flag_of(field), printable(planned), printable(ran)));
  }
}

/// What is known to make the two programs different. The job is the same, so it is a flag of the run, or nothing that
/// the files show.
std::vector<std::string> program_differences(const PlanFile& plan, const RunRecord& run) {
  if (plan.fingerprint.empty() || run.fingerprint.empty() || plan.fingerprint == run.fingerprint) return {};
  std::vector<std::string> differences;
  const RunEffects effects = run.effects.value_or(RunEffects{.clip = plan.clip});
  if (effects.clip != plan.clip) {
    differences.emplace_back(effects.clip ? "the run clips gradients, and the plan does not count it"
                                          : "the plan counts clipping of gradients, and the run does none");
  }
  if (effects.saves)
    differences.emplace_back("the run saves sharded checkpoints (--save), which a plan does not count");
  if (effects.saves_full) {
    differences.emplace_back("the run saves the whole model (--save-full), which a plan does not count");
  }
  if (effects.saves_adapters) {
    differences.emplace_back("the run saves its adapters (--save-adapters), which a plan does not count");
  }
  if (differences.empty()) {
    differences.emplace_back(
        "job, cluster and flags are equal: the model's config.json was changed, or another version of vramfit made one "
        "of the two files");
  }
  return differences;
}

ComparedLine line(std::string name, Bytes predicted, Bytes measured) { return {std::move(name), predicted, measured}; }

std::optional<Bytes> allocated_in(const RankEstimate& rank, const PhasePeak& like) {
  const auto found = std::ranges::find_if(
      rank.phases, [&](const PhasePeak& peak) { return peak.phase == like.phase && peak.steady == like.steady; });
  return found == rank.phases.end() ? std::nullopt : std::optional(found->allocated);
}

/// Measured ones in their order, then those that were only predicted.
std::vector<ComparedLine> compare_phases(const RankEstimate& predicted, const RankEstimate& measured) {
  std::vector<ComparedLine> lines;
  for (const PhasePeak& was : measured.phases) {
    lines.push_back({line_name(was), allocated_in(predicted, was), was.allocated});
  }
  for (const PhasePeak& said : predicted.phases) {
    if (!allocated_in(measured, said)) lines.push_back({line_name(said), said.allocated, std::nullopt});
  }
  return lines;
}

std::vector<ComparedLine> compare_categories(const Breakdown& predicted, const Breakdown& measured) {
  const std::array<Bytes, kBreakdownParts> said = breakdown_parts(predicted), found = breakdown_parts(measured);
  std::vector<ComparedLine> lines;
  for (std::size_t i = 0; i < kBreakdownParts; ++i) {
    lines.push_back(line(std::string(breakdown_part_name(i)), said[i], found[i]));
  }
  return lines;
}

}  // namespace

double signed_error(Bytes predicted, Bytes measured) {
  if (predicted == measured) return 0;
  if (measured.n == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(predicted.n - measured.n) / static_cast<double>(measured.n);
}

double ComparedLine::error() const {
  return is_on_both() ? signed_error(*predicted, *measured) : std::numeric_limits<double>::quiet_NaN();
}

std::string line_name(const PhasePeak& peak) {
  return fmt::format("{}, {}", phase_name(peak.phase), peak.steady ? "steady" : "first");
}

bool Comparison::within() const {
  return std::abs(allocated.error()) <= tolerance && std::abs(reserved.error()) <= tolerance;
}

Comparison compare(const PlanFile& plan, const RunRecord& run, double tolerance) {
  check_same_job(plan, run);
  const RankEstimate& predicted = plan.predicted_ranks.at(static_cast<std::size_t>(plan.predicted_worst));
  const RankEstimate& measured = run.ranks.at(static_cast<std::size_t>(run.worst)).memory;
  Comparison comparison;
  comparison.model_name = run.model_name;
  comparison.tolerance = tolerance;
  comparison.rehearsed = run.device == "phantom";
  comparison.requested = line("requested", predicted.peak_requested, measured.peak_requested);
  comparison.allocated = line("allocated", predicted.peak_allocated, measured.peak_allocated);
  comparison.reserved = line("reserved", predicted.peak_reserved, measured.peak_reserved);
  comparison.phases = compare_phases(predicted, measured);
  comparison.categories = compare_categories(predicted.breakdown, measured.breakdown);
  for (const MeasuredRank& rank : run.ranks) comparison.ranks.push_back(rank.memory);
  comparison.worst = run.worst;
  comparison.program_differences = program_differences(plan, run);
  return comparison;
}

double parse_tolerance(std::string_view text) {
  const bool percent = text.ends_with('%');
  const std::string_view digits = percent ? text.substr(0, text.size() - 1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (percent) value /= 100;
  if (error != std::errc{} || end != digits.data() + digits.size() || !(value >= 0 && value <= 1)) {
    throw InputError(fmt::format("--tolerance: \"{}\" is not a share such as 2% or 0.02", printable(text, 40)));
  }
  return value;
}

}  // namespace vramfit
