#include "planner/ranking.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace vramfit {

// Of an option and a group with equal figures, the one that lists an option first: what is in a group can at most be as
// fast as the option, and comes after it if it is listed later.
bool Ranking::ComesLater::operator()(const Entry& a, const Entry& b) const {
  return std::tuple(a.most_tokens_per_second, b.first) < std::tuple(b.most_tokens_per_second, a.first);
}

Ranking::Ranking(Evaluator& evaluator, std::vector<Option> options)
    : evaluator_(&evaluator), options_(std::move(options)) {
  std::map<std::string, std::size_t> group_of_program;
  std::vector<double> most;  // by group
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const auto [group, is_new] = group_of_program.try_emplace(evaluator.program_key(options_[i].job), groups_.size());
    if (is_new) {
      groups_.emplace_back();
      most.push_back(0);
    }
    groups_[group->second].push_back(i);
    double& speed = most[group->second];
    speed = std::max(speed, evaluator.most_tokens_per_second(options_[i].job));
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) queue_.push({most[g], groups_[g].front(), static_cast<int>(g)});
}

void Ranking::time_group(const std::vector<std::size_t>& group) {
  for (const std::size_t i : group) {
    const Option timed = evaluator_->timed(options_[i].job);
    options_[i].time = timed.time;
    options_[i].tokens_per_second = timed.tokens_per_second;
    queue_.push({timed.tokens_per_second, i, -1});
  }
}

const Option& Ranking::at(std::size_t place) {
  while (places_.size() <= place) {
    const Entry next = queue_.top();
    queue_.pop();
    if (next.group < 0) {
      places_.push_back(next.first);
    } else {
      time_group(groups_[static_cast<std::size_t>(next.group)]);
    }
  }
  return options_[places_[place]];
}

}  // namespace vramfit
