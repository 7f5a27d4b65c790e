#include "cli/rehearse/search/trial_report.h"

#include <algorithm>

#include <fmt/format.h>

namespace vramfit {

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

std::string trial_table(const std::vector<RehearsalTrial>& trials, const std::string& gpus) {
  std::size_t width = 10;
  for (const RehearsalTrial& trial : trials) width = std::max(width, point_text(trial.point).size());
  std::string text = fmt::format("{:<{}}  {:>10}  verdict (rehearsed on phantom GPUs: {})\n", "", width, "GiB", gpus);
  for (const RehearsalTrial& trial : trials) {
    text += fmt::format("{:<{}}  {:>10.1f}  {}{}\n", point_text(trial.point), width, gib_of(trial.total), trial.verdict,
                        trial.is_cached ? " (cached)" : "");
  }
  return text;
}

}  // namespace vramfit
