#include "cli/flags/calibration_files.h"

#include <algorithm>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/numbers/median.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/flags/model.h"
#include "estimator/time/recorded_runs.h"

namespace vramfit {
namespace {

bool is_run(JsonObject& document) { return document.is_text("schema") && document.text("schema") == "vramfit/run@1"; }

/// By its name, where it isn't the one that is asked about.
ModelSpec model_of(const RunRecord& run, const ModelSpec& asked, const std::string& file) {
  if (run.model_name == asked.name) return asked;
  try {
    return read_model(run.model_name);
  } catch (const Error& error) {
    throw InputError(fmt::format("{}: trained {}, which is neither the model asked about nor one that is found: {}",
                                 printable(file), printable(run.model_name), error.what()));
  }
}

/// Shares of one card's peaks say nothing of another's. CPU ranks have one name for each size of memory.
void check_card(JsonObject& document, const std::string& file, const Cluster& cluster) {
  if (!document.has("name") && !document.is_null("name")) return;
  const std::string card = document.text("name");
  if (card == cluster.card.name || (cluster.is_cpu() && card.starts_with("cpu-"))) return;
  throw InputError(fmt::format("--calibration {}: measured on {}, and this job is for {}", printable(file),
                               printable(card), cluster.card.name));
}

using NamedRun = std::pair<std::string, RunRecord>;

/// Steps of a card alone and of several have shares of their own. Where the runs are of the other kind than is asked
/// about, its share is the known one as far off as those of the runs.
Efficiency efficiency_by_runs(const std::vector<NamedRun>& runs, const Cluster& cluster, const ModelSpec& spec,
                              Efficiency efficiency) {
  std::vector<double> own, of_known;
  for (const auto& [file, run] : runs) {
    const StepShare kind = step_share_on(run.cluster);
    const double share = step_share_of_run(run, model_of(run, spec, file), cluster, efficiency, file);
    of_known.push_back(share / (efficiency.*kind.value));
    if (kind.name == step_share_on(cluster).name) own.push_back(share);
  }
  const StepShare asked = step_share_on(cluster);
  const std::size_t used = own.empty() ? of_known.size() : own.size();
  std::string origin = fmt::format("measured: {} recorded run{}", used, used == 1 ? "" : "s");
  if (own.empty()) origin = fmt::format("assumed as far from the known one as {} on another number of GPUs", origin);
  double& share = efficiency.*asked.value;
  share = own.empty() ? std::min(share * median(std::move(of_known)), most_share(cluster)) : median(std::move(own));
  set_figure(efficiency, {.name = std::string(asked.name), .value = share, .origin = origin});
  return efficiency;
}

}  // namespace

void add_calibration_flag(CLI::App& command, std::vector<std::string>& files) {
  command
      .add_option("--calibration", files,
                  "Speeds measured on this machine, used instead of the figures known for its GPUs: a file of `vramfit "
                  "calibrate`, or a run.json, whose step times are used. May be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("FILE")
      ->group(kCommonFlags);
}

Efficiency efficiency_by(const std::vector<std::string>& files, const Cluster& cluster, const ModelSpec& spec) {
  Efficiency efficiency = efficiency_of(cluster);
  std::vector<NamedRun> runs;
  for (const std::string& file : files) {
    const std::string text = read_file(file);
    const JsonValue value = parse_json(text, file);
    JsonObject document(value, file);
    if (is_run(document)) {
      runs.emplace_back(file, run_from_json(text, file));
    } else {
      check_card(document, file, cluster);
      efficiency = calibrated_efficiency(cluster, efficiency, text, file);
    }
  }
  return runs.empty() ? efficiency : efficiency_by_runs(runs, cluster, spec, efficiency);
}

}  // namespace vramfit
