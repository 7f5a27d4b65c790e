// Compares a prediction with a measurement: by peak, by phase and by category, with signed errors
// (vramfit/comparison@1).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/compare/events.h"
#include "program/files/plan_reader.h"
#include "program/files/run_record.h"

namespace vramfit {

/// (predicted - measured) / measured; 0 when both are 0, infinite when only the measurement is.
double signed_error(Bytes predicted, Bytes measured);

struct ComparedLine {
  std::string name;                          // "optimizer, steady", "activations"
  std::optional<Bytes> predicted, measured;  // none: that side has no such phase
  bool is_on_both() const { return predicted && measured; }
  /// NaN where one side is missing.
  double error() const;
};

/// "optimizer, steady"
std::string line_name(const PhasePeak& peak);

struct Comparison {
  std::string model_name;
  bool rehearsed = false;  // the second figure comes from phantom GPUs
  double tolerance = 0.02;
  ComparedLine requested, allocated, reserved;   // of the worst rank
  std::vector<ComparedLine> phases, categories;  // of the worst rank; phases of either side
  std::vector<ComparedEvents> events;            // by rank; empty: not compared
  std::vector<RankEstimate> ranks;               // as measured
  int worst = 0;
  /// Why the run's program is another than the predicted one; empty: it is the same, or one side has no fingerprint.
  std::vector<std::string> program_differences;
  /// Whether the peaks (allocated and reserved) lie within the tolerance.
  bool within() const;
};

/// Throws InputError when the two are of different jobs, models or clusters.
Comparison compare(const PlanFile& plan, const RunRecord& run, double tolerance);

/// Whether `text` is a vramfit/rehearsal@1.
bool is_rehearsal(std::string_view text, const std::string& file);

/// The same for a rehearsal's largest rank. Only the clusters are checked: that the script trains the plan's job is up
/// to the user. A rehearsed forward includes the loss, and only a rehearsal's categories are compared.
Comparison compare_rehearsal(const PlanFile& plan, std::string_view text, const std::string& file, double tolerance);

/// "2%", "0.02": at least 0, at most 1; throws InputError.
double parse_tolerance(std::string_view text);

/// vramfit/comparison@1.
std::string comparison_to_json(const Comparison& comparison);

/// Ends in a newline; the first line is the verdict.
std::string comparison_text(const Comparison& comparison);

}  // namespace vramfit
