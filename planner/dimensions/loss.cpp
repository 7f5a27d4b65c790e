#include "job/loss_options.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// The default, and more chunks. Where the default is chunked, full loss and fewer chunks are left out: they are hardly
// faster and need more memory. With more than 64 chunks, logits are too small to matter.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs{job};
  Job& usual = jobs.front();
  usual.loss = space.default_loss(job);
  const std::int64_t fewest = loss_options(usual).chunks + 1;
  for (const std::int64_t chunks : {2, 4, 8, 16, 32, 64}) {
    if (chunks < fewest) continue;
    if (chunks > job.micro_batch * job.sequence) break;
    Job choice = job;
    choice.loss = ChunkedLoss{chunks};
    jobs.push_back(choice);
  }
  return jobs;
}

}  // namespace

Dimension loss() {
  return {.name = "loss",
          .cost = "head and loss in pieces",
          .fields = {"loss"},
          .choices = choices,
          .open = OpenChoice::loss,
          .is_fine = true};
}

}  // namespace vramfit::dimension
