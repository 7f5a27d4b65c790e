#include "planner/dimensions/dimensions.h"

namespace vramfit {

std::vector<Job> checkpointing_choices(const Job& job, const SearchSpace& /*space*/) {
  std::vector<Job> choices{job, job};
  choices[0].checkpointing = Checkpointing::none;
  choices[1].checkpointing = Checkpointing::full;
  for (Job& choice : choices) choice.checkpoint_every = 1;
  return choices;
}

}  // namespace vramfit
