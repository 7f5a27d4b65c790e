#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/rehearse/search/search.h"
#include "cli/rehearse/search/trial_report.h"

namespace vramfit {
namespace {

/// The trial of the largest value that fits.
const RehearsalTrial& best_of(const SearchRow& row) {
  const auto found = std::ranges::find_if(row.trials.rbegin(), row.trials.rend(),
                                          [](const RehearsalTrial& trial) { return trial.exit_code == 0; });
  return *found;
}

std::string with(const SearchPoint& values) {
  return values.empty() ? "" : fmt::format(" with {}", point_text(values));
}

std::string conclusion(const SearchRow& row, const SearchAxis& range, Bytes capacity) {
  if (const RehearsalTrial* failed = row.failed()) {
    return fmt::format("{} could not be rehearsed: {}\n", point_text(failed->point), printable(failed->why, 300));
  }
  if (!row.largest) {
    return fmt::format("no {} from {} to {} fits{}\n", range.name, range.first, range.last, with(row.values));
  }
  std::string text = fmt::format("largest {} that fits{}: {} ({:.1f} of {:.1f} GiB)", range.name, with(row.values),
                                 *row.largest, gib_of(best_of(row).total), gib_of(capacity));
  text += *row.largest == range.last ? ", the last that was asked for\n"
                                     : fmt::format("; {} does not fit\n", *row.largest + 1);
  if (const auto falling = row.falling()) {
    text += fmt::format("  but {} needs less than {}, so a value beyond {} may fit too: list values to try them all\n",
                        point_text(row.trials[falling->second].point), point_text(row.trials[falling->first].point),
                        *row.largest);
  }
  return text;
}

}  // namespace

std::string search_to_json(const SearchResult& result, const std::string& gpus, Bytes capacity) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/rehearsal-search@1").member("rehearsed", true).member("gpus", gpus);
  writer.member("capacity_bytes", capacity).key("range");
  if (const SearchAxis* range = result.range()) {
    writer.begin_object()
        .member("name", range->name)
        .member("first", range->first)
        .member("last", range->last)
        .end_object();
  } else {
    writer.null();
  }
  writer.key("rows").begin_array();
  for (const SearchRow& row : result.rows) {
    writer.begin_object();
    write_point(writer, row.values);
    writer.member("fits", row.largest.has_value());
    writer.member("largest", result.range() != nullptr ? row.largest : std::nullopt);
    writer.member("monotonic", !row.falling().has_value()).member("complete", row.failed() == nullptr);
    writer.key("trials").begin_array();
    for (const RehearsalTrial& trial : row.trials) write_trial(writer, trial);
    writer.end_array().end_object();
  }
  return writer.end_array().end_object().take();
}

std::string search_text(const SearchResult& result, const std::string& gpus, Bytes capacity) {
  std::vector<RehearsalTrial> trials;
  for (const SearchRow& row : result.rows) trials.insert(trials.end(), row.trials.begin(), row.trials.end());
  std::string text = trial_table(trials, gpus);
  text += "\n";
  for (const SearchRow& row : result.rows) {
    if (const SearchAxis* range = result.range()) {
      text += conclusion(row, *range, capacity);
    } else if (const RehearsalTrial* failed = row.failed()) {
      text += fmt::format("{} could not be rehearsed: {}\n", point_text(failed->point), printable(failed->why, 300));
    }
  }
  if (result.range() == nullptr) {
    const auto fitting =
        std::ranges::count_if(result.rows, [](const SearchRow& row) { return row.largest.has_value(); });
    text += fmt::format("{} of {} fit\n", fitting, result.rows.size());
  }
  return text;
}

}  // namespace vramfit
