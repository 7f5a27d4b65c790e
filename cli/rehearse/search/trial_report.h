// How the rehearsals of a search or a band are shown.
#pragma once

#include <string>
#include <vector>

#include "base/json/json_writer.h"
#include "base/text/units.h"
#include "cli/rehearse/search/search.h"

namespace vramfit {

/// An object of names and values, as the member "values".
void write_point(JsonWriter& writer, const SearchPoint& point);
/// An object: configs/schemas/rehearsal-search.schema.json, `trial`.
void write_trial(JsonWriter& writer, const RehearsalTrial& trial);

/// A line of titles, and one for each trial: its values, GiB and verdict.
std::string trial_table(const std::vector<RehearsalTrial>& trials, const std::string& gpus);

}  // namespace vramfit
