// Options of a search in the order of their predicted speed. Only those are timed that may come before what is asked
// for: a bound of the time is found much faster than a time.
#pragma once

#include <cstddef>
#include <queue>
#include <string>
#include <vector>

#include "planner/search.h"

namespace vramfit {

class Ranking {
 public:
  /// No options.
  Ranking() = default;
  /// Options without times. The evaluator outlives the ranking.
  Ranking(Evaluator& evaluator, std::vector<Option> options);

  std::size_t size() const { return options_.size(); }
  /// The option with this place, with its time: fastest first, of equally fast ones the earlier. It stays where it is.
  const Option& at(std::size_t place);

 private:
  /// An option, or a group of options that share a program and have not been timed.
  struct Entry {
    double most_tokens_per_second = 0;
    std::size_t first = 0;  // the option, or the first of the group
    int group = -1;         // -1: a timed option
  };
  struct ComesLater {
    bool operator()(const Entry& a, const Entry& b) const;
  };

  void time_group(const std::vector<std::size_t>& group);

  Evaluator* evaluator_ = nullptr;
  std::vector<Option> options_;
  std::vector<std::vector<std::size_t>> groups_;  // numbers of options
  std::priority_queue<Entry, std::vector<Entry>, ComesLater> queue_;
  std::vector<std::size_t> places_;  // numbers of the options whose places are known
};

}  // namespace vramfit
