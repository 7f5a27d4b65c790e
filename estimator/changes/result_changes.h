// Changes of the training result, as a table of kinds: what an estimate suggests, what a plan hints at, and what
// `--allow` permits are choices of its rows. A new kind is a row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "job/job.h"
#include "model_specs/spec.h"

namespace vramfit {

struct ResultChange {
  std::string_view name;         // as --allow takes it
  std::string_view field;        // the job field it changes
  std::string_view example;      // of --allow, for its help
  bool last_resort = false;      // what is trained isn't comparable: planned only when nothing else fits
  bool shown_if_faster = false;  // of a last resort that is allowed: beside a plan that does without it
  bool shrinks = false;          // its choices are one number, the greatest first: each needs less than those before
  /// Changed jobs, the smallest change first; `values` are those that were named, or empty for the usual ones. `job` is
  /// resolved; what follows from the change isn't yet.
  std::vector<Job> (*choices)(const Job& job, const ModelSpec& spec, const std::vector<std::string>& values);
  /// Values that are worth naming, where the kind has none by default.
  std::vector<std::string> (*by_name)(const Job& job) = nullptr;
  /// Why a job has none of what was named, where that is said in no other way; null: it always is.
  std::string (*why_none)(const Job& job, const ModelSpec& spec, const std::vector<std::string>& values) = nullptr;
  std::string (*value)(const Job& job);     // of a changed job, as --allow takes it: "bf16-pure"
  void (*check)(const std::string& value);  // throws InputError
};

/// The smallest change of training first.
std::span<const ResultChange> result_changes();

/// Whether a job has frozen matrices in its layers, as are needed for --quantization.
bool has_frozen_matrices(const Job& job, const ModelSpec& spec);

}  // namespace vramfit
