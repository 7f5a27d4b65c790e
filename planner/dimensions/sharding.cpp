#include "job/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit {

// One card has nothing to split; hybrid sharding needs cards that divide into groups.
std::vector<Job> sharding_choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> choices;
  for (const Sharding& row : kShardings) {
    if (row.parameters && space.cluster.cards() == 1) continue;
    choices.push_back(job);
    choices.back().sharding = row.name;
  }
  return choices;
}

}  // namespace vramfit
