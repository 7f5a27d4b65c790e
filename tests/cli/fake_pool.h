// A pool of rehearsals that are functions.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "cli/rehearse/search/search_schedule.h"

namespace vramfit::testing {

using Rehearse = std::function<RehearsalTrial(const SearchPoint& point)>;

/// Has room for `jobs`, which end in an order drawn from `seed`.
class FakePool : public TrialPool {
 public:
  FakePool(Rehearse rehearse, std::size_t jobs, unsigned seed)
      : rehearse_(std::move(rehearse)), jobs_(jobs), random_(seed) {}

  std::optional<RehearsalTrial> kept(const SearchPoint& /*point*/) override { return std::nullopt; }
  bool has_room() override { return running_.size() < jobs_; }
  void start(const SearchPoint& point) override {
    for (Running& other : running_) other.is_alone = false;
    running_.push_back({point, running_.empty(), true});
    most = std::max(most, running_.size());
    ++started;
  }
  void cancel(const SearchPoint& point) override {
    for (Running& running : running_) {
      if (running.point == point) running.is_wanted = false;
    }
  }
  std::optional<Ended> wait() override {
    REQUIRE(!running_.empty());  // a search that waits for nothing would never end
    const auto at = running_.begin() + static_cast<std::ptrdiff_t>(random_() % running_.size());
    const Running ended = *at;
    running_.erase(at);
    if (!ended.is_wanted) return std::nullopt;
    RehearsalTrial trial = rehearse_(ended.point);
    if (fails_beside_others && !ended.is_alone && random_() % 2 == 0) trial.exit_code = 1;
    return Ended{trial, ended.is_alone};
  }
  bool is_idle() override { return running_.empty(); }
  void accept(const RehearsalTrial& trial) override { accepted.push_back(trial.point); }

  bool fails_beside_others = false;
  std::size_t most = 0, started = 0;
  std::vector<SearchPoint> accepted;

 private:
  struct Running {
    SearchPoint point;
    bool is_alone, is_wanted;
  };
  Rehearse rehearse_;
  std::size_t jobs_;
  std::mt19937 random_;
  std::vector<Running> running_;
};

}  // namespace vramfit::testing
