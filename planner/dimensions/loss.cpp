#include "planner/dimensions/dimensions.h"

namespace vramfit {

// With more than 32 chunks, logits are too small to matter.
std::vector<Job> loss_choices(const Job& job, const SearchSpace& /*space*/) {
  std::vector<Job> choices{job};
  choices.front().loss = LossKind::full;
  for (const std::int64_t chunks : {4, 8, 16, 32}) {
    if (chunks > job.micro_batch * job.sequence) break;
    Job choice = job;
    choice.loss = LossKind::chunked;
    choice.loss_chunks = chunks;
    choices.push_back(choice);
  }
  return choices;
}

}  // namespace vramfit
