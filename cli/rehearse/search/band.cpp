#include "cli/rehearse/search/band.h"

#include <algorithm>
#include <deque>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/rehearse/report/assumptions.h"
#include "cli/rehearse/search/trial_report.h"

namespace vramfit {
namespace {

bool ran_out_of_memory(const RehearsalTrial& trial) {
  return trial.exit_code == static_cast<int>(ExitCode::out_of_memory);
}

/// All settings, at the ends that the bits of `others` say.
SearchPoint point_of(std::int64_t others) {
  SearchPoint point;
  for (const AssumptionEnds& each : kAssumptionEnds) {
    point.emplace_back(each.setting, (others & each.assumption) != 0 ? each.other : each.usual);
  }
  return point;
}

/// The settings whose other end was rehearsed.
SearchPoint shown(const SearchPoint& point, std::int64_t assumptions) {
  SearchPoint some;
  for (const auto& [name, value] : point) {
    const bool matters = std::ranges::any_of(kAssumptionEnds, [&](const AssumptionEnds& each) {
      return each.setting == name && (each.assumption & assumptions) != 0;
    });
    if (matters) some.emplace_back(name, value);
  }
  return some;
}

class BandRun {
 public:
  explicit BandRun(TrialPool& pool) : pool_(pool) {}

  RehearsalBand run() {
    plan();
    while (!is_interrupted_ && (!waiting_.empty() || !alone_.empty() || running_ > 0)) {
      start_more();
      const auto ended = pool_.wait();
      --running_;
      if (ended) take(*ended);
    }
    std::ranges::sort(band_.trials, {}, [](const RehearsalTrial& trial) { return number_of(trial.point); });
    return std::move(band_);
  }

 private:
  /// Bits of what is at its other end: 0 comes first.
  static std::int64_t number_of(const SearchPoint& point) {
    std::int64_t others = 0;
    for (const AssumptionEnds& each : kAssumptionEnds) {
      const auto found =
          std::ranges::find(point, each.setting, [](const auto& pair) { return std::string_view(pair.first); });
      if (found != point.end() && found->second == each.other) others |= each.assumption;
    }
    return others;
  }

  /// All combinations of the ends that matter so far, but for those that were planned before.
  void plan() {
    std::vector<std::int64_t> combinations{0};
    for (const AssumptionEnds& each : kAssumptionEnds) {
      if ((each.assumption & band_.assumptions) == 0) continue;
      const std::size_t count = combinations.size();
      for (std::size_t n = 0; n < count; ++n) combinations.push_back(combinations[n] | each.assumption);
    }
    for (const std::int64_t others : combinations) {
      if (std::ranges::find(planned_, others) != planned_.end()) continue;
      planned_.push_back(others);
      waiting_.push_back(point_of(others));
    }
  }

  void start(std::deque<SearchPoint>& from) {
    pool_.start(from.front());
    from.pop_front();
    ++running_;
  }

  void start_more() {
    while (!waiting_.empty() && pool_.has_room()) start(waiting_);
    if (running_ == 0 && !alone_.empty()) start(alone_);
  }

  void take(const TrialPool::Ended& ended) {
    if (ended.trial.is_failure() && !ended.was_alone) return alone_.push_back(ended.trial.point);
    pool_.accept(ended.trial);
    band_.trials.push_back(ended.trial);
    if (!ended.trial.is_failure()) band_.assumptions |= ended.trial.assumptions;  // else the others would fail too
    is_interrupted_ = ended.trial.is_interrupted;
    plan();
  }

  TrialPool& pool_;
  RehearsalBand band_;
  std::vector<std::int64_t> planned_;
  std::deque<SearchPoint> waiting_, alone_;  // alone: failed beside others
  int running_ = 0;
  bool is_interrupted_ = false;
};

std::string gib_text(Bytes least, Bytes most, Bytes capacity) {
  const std::string from = least == most ? "" : fmt::format("{:.1f} to ", gib_of(least));
  return fmt::format("{}{:.1f} of {:.1f} GiB", from, gib_of(most), gib_of(capacity));
}

std::vector<std::string> names_with_ends(std::int64_t assumptions, bool has_ends) {
  std::int64_t all = 0;
  for (const AssumptionEnds& each : kAssumptionEnds) all |= each.assumption;
  return assumption_names(has_ends ? assumptions & all : assumptions & ~all);
}

void judge(RehearsalBand& band) {
  for (const RehearsalTrial& trial : band.trials) {
    if (trial.is_failure() || trial.is_interrupted) continue;
    band.least = band.most.n == 0 ? trial.total : std::min(band.least, trial.total);
    band.most = std::max(band.most, trial.total);
  }
  const auto said_by = [&](const RehearsalTrial& trial) {
    const std::string values = point_text(shown(trial.point, band.assumptions));
    band.verdict = trial.verdict;
    band.why = values.empty() ? trial.why : fmt::format("with {}: {}", values, trial.why);
  };
  const auto worst = [&](auto is_so) {
    const auto found = std::ranges::find_if(band.trials, is_so);
    if (found != band.trials.end()) said_by(*found);
    return found != band.trials.end();
  };
  if (worst([](const RehearsalTrial& trial) { return trial.is_interrupted; })) return;
  if (worst(ran_out_of_memory) || worst([](const RehearsalTrial& trial) { return trial.is_failure(); })) return;
  said_by(band.trials.front());
  if (band.trials.size() == 1) return;
  band.verdict = "at_risk";
  const std::string ends =
      band.trials.size() == 2 ? "both ends" : fmt::format("all {} combinations of the ends", band.trials.size());
  band.why = fmt::format("fits at {} of {}, which sizes or branches follow from", ends,
                         fmt::join(names_with_ends(band.assumptions, true), " and "));
}

}  // namespace

int RehearsalBand::exit_code() const {
  const auto failed = std::ranges::find_if(
      trials, [](const RehearsalTrial& trial) { return trial.exit_code != 0 && !ran_out_of_memory(trial); });
  if (std::ranges::any_of(trials, ran_out_of_memory)) return static_cast<int>(ExitCode::out_of_memory);
  return failed == trials.end() ? 0 : failed->exit_code;
}

PhantomSettings settings_at(PhantomSettings settings, const SearchPoint& point) {
  for (const auto& [name, value] : point) set_phantom_setting(settings, name, value);
  return settings;
}

RehearsalBand run_band(TrialPool& pool) {
  RehearsalBand band = BandRun(pool).run();
  judge(band);
  for (RehearsalTrial& trial : band.trials) trial.point = shown(trial.point, band.assumptions);
  return band;
}

std::string band_to_json(const RehearsalBand& band, const std::string& gpus, Bytes capacity) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/rehearsal-band@1").member("rehearsed", true).member("gpus", gpus);
  writer.member("capacity_bytes", capacity).member("verdict", band.verdict).member("why", band.why);
  writer.member("least_bytes", band.least).member("most_bytes", band.most);
  for (const bool has_ends : {true, false}) {
    writer.member(has_ends ? "assumptions" : "assumptions_without_ends", names_with_ends(band.assumptions, has_ends));
  }
  writer.key("ends").begin_array();
  for (const RehearsalTrial& trial : band.trials) write_trial(writer, trial);
  return writer.end_array().end_object().take();
}

std::string band_text(const RehearsalBand& band, const std::string& gpus, Bytes capacity) {
  std::string text = trial_table(band.trials, gpus);
  text +=
      fmt::format("\n{}: {} ({})\n", band.verdict, gib_text(band.least, band.most, capacity), printable(band.why, 300));
  const std::vector<std::string> others = names_with_ends(band.assumptions, false);
  if (!others.empty()) {
    text += fmt::format("sizes or branches also follow from what has no two ends: {}\n", fmt::join(others, ", "));
  }
  return text;
}

}  // namespace vramfit
