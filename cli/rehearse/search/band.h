// The ends of the assumptions that a program's sizes and branches follow from: `rehearse --band -- CMD`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/rehearse/processes/session_folder.h"
#include "cli/rehearse/search/search.h"
#include "cli/rehearse/search/search_schedule.h"

namespace vramfit {

/// A program at all combinations of the ends (kAssumptionEnds) of what its steering reads rest on.
struct RehearsalBand {
  std::vector<RehearsalTrial> trials;  // the first with the usual ends; values of the settings that matter
  std::int64_t assumptions = 0;        // bits: assumptions.h
  /// "does_not_fit" if one does not, "failed" or "interrupted" if one was; else "at_risk" if there are several, and
  /// otherwise that of the only one.
  std::string verdict, why;
  Bytes least, most;  // of the fullest GPU, of those that ended well or ran out of memory
  /// 6: one does not fit; else that of the first that failed, or 0.
  int exit_code() const;
};

/// With these values of the settings.
PhantomSettings settings_at(PhantomSettings settings, const SearchPoint& point);

/// The usual ends first. What a trial's steering reads rest on says which others are rehearsed, until no new one is
/// found. One that failed beside others is repeated alone.
RehearsalBand run_band(TrialPool& pool);

/// vramfit/rehearsal-band@1.
std::string band_to_json(const RehearsalBand& band, const std::string& gpus, Bytes capacity);
/// A table of all trials, and what follows from it.
std::string band_text(const RehearsalBand& band, const std::string& gpus, Bytes capacity);

}  // namespace vramfit
