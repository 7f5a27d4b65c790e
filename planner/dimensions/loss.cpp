#include <utility>

#include "job/loss/loss_options.h"
#include "job/sharding/sharding.h"
#include "planner/dimensions/dimensions.h"
#include "program/stages/offload.h"

namespace vramfit::dimension {

namespace {

/// Whether the last layer is gathered again while backward of the head runs. Gradients made in forward are done before
/// that; its gather has less to hide behind then.
bool gathers_behind_head(const Job& job) {
  const bool is_gathered = job.mesh.shard > 1 || offload_of(job).parameters;
  const bool keeps_last =
      std::holds_alternative<ReshardNever>(job.reshard) || std::holds_alternative<ReshardLastKept>(job.reshard);
  return is_gathered && sharding_named(job.sharding).reshard && !keeps_last &&
         !std::holds_alternative<WrapNothing>(job.wrap);
}

// The default, and other numbers of chunks; then the chunked ones with gradients made in forward, where that saves
// memory. Full loss and fewer chunks than the default has are faster and need more memory; beside a small head, they
// are left out. With more than 64 chunks, logits are too small to matter.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs{job};
  Job& usual = jobs.front();
  usual.loss = space.default_loss(job);
  if (job.runtime != Runtime::vramfit) return jobs;  // chunks of PyTorch's loops are a wish
  const std::int64_t by_default = loss_options(usual).chunks;
  const bool may_be_fewer = !space.has_small_head();
  const auto add = [&](const Loss& loss) {
    Job choice = job;
    choice.loss = loss;
    jobs.push_back(std::move(choice));
  };
  if (by_default > 0 && may_be_fewer) add(FullLoss{});
  for (const std::int64_t chunks : {2, 4, 8, 16, 32, 64}) {
    if (chunks > job.micro_batch * job.sequence) break;
    if (chunks > by_default || (chunks < by_default && may_be_fewer)) add(ChunkedLoss{chunks});
  }
  if (!gathers_behind_head(job)) return jobs;
  for (std::size_t i = 0, made = jobs.size(); i < made; ++i) {
    Job choice = jobs[i];
    auto* const chunked = std::get_if<ChunkedLoss>(&choice.loss);
    if (chunked == nullptr) continue;
    chunked->in_forward = true;
    jobs.push_back(std::move(choice));
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
