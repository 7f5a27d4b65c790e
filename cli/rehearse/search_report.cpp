#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/suggest.h"
#include "cli/rehearse/search.h"

namespace vramfit {
namespace {

void write_point(JsonWriter& writer, const SearchPoint& point) {
  writer.key("values").begin_object();
  for (const auto& [name, value] : point) writer.member(name, value);
  writer.end_object();
}

void write_trial(JsonWriter& writer, const RehearsalTrial& trial) {
  writer.begin_object();
  write_point(writer, trial.point);
  writer.member("verdict", trial.verdict).member("fits", trial.exit_code == 0).member("why", trial.why);
  writer.member("total_bytes", trial.total).member("exit_code", trial.exit_code).member("cached", trial.is_cached);
  writer.end_object();
}

double gib_of(Bytes bytes) { return static_cast<double>(bytes.n) / static_cast<double>(kGiB.n); }

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
    writer.member("fits", row.largest.has_value()).key("largest");
    if (row.largest && result.range() != nullptr) {
      writer.integer(*row.largest);
    } else {
      writer.null();
    }
    writer.member("monotonic", !row.falling().has_value()).member("complete", row.failed() == nullptr);
    writer.key("trials").begin_array();
    for (const RehearsalTrial& trial : row.trials) write_trial(writer, trial);
    writer.end_array().end_object();
  }
  return writer.end_array().end_object().take();
}

std::string search_text(const SearchResult& result, const std::string& gpus, Bytes capacity) {
  std::size_t width = 10;
  for (const SearchRow& row : result.rows) {
    for (const RehearsalTrial& trial : row.trials) width = std::max(width, point_text(trial.point).size());
  }
  std::string text = fmt::format("{:<{}}  {:>10}  verdict (rehearsed on phantom GPUs: {})\n", "", width, "GiB", gpus);
  for (const SearchRow& row : result.rows) {
    for (const RehearsalTrial& trial : row.trials) {
      text += fmt::format("{:<{}}  {:>10.1f}  {}{}\n", point_text(trial.point), width, gib_of(trial.total),
                          trial.verdict, trial.is_cached ? " (cached)" : "");
    }
  }
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
