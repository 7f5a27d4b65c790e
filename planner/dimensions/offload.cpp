#include <utility>

#include "base/error.h"
#include "planner/dimensions/dimensions.h"
#include "program/stages/offload.h"

namespace vramfit::dimension {

namespace {

bool has_rules_for(const Job& job) {
  try {
    require_offload(job);
    return true;
  } catch (const NotModelled&) {
    return false;
  }
}

// What leaves the card costs copies and an update on the CPU, so each kind is slower than those before it, and takes
// more host memory. Activations may leave with each of them. Without a stated amount of that (--host-memory), nobody
// has said that there is any to use. accelerate's FSDP2 has its cpu_offload, as FSDP1 has where it has rules for
// it; DeepSpeed its offload_optimizer and with ZeRO-3 offload_param, and other PyTorch runtimes nothing.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> list{job};
  list.front().offload.clear();
  if (space.cluster.is_cpu() || space.cluster.host_memory.n == 0) return list;
  const auto add = [&](std::vector<std::string> kinds) {
    Job offloaded = job;
    offloaded.offload = std::move(kinds);
    if (has_rules_for(offloaded)) list.push_back(std::move(offloaded));
  };
  if (job.runtime == Runtime::pytorch_fsdp2 && uses_accelerate(job)) add({"params"});
  const bool is_plain = job.method == Method::full && job.precision.name == "bf16-mixed";
  if (job.runtime == Runtime::pytorch_fsdp1 && is_plain) add({"params"});
  if (job.runtime == Runtime::deepspeed) {
    add({"optimizer"});
    if (job.sharding == "full-shard") add({"params"});
  }
  if (job.runtime != Runtime::vramfit) return list;
  add({"activations"});
  for (const char* kind : {"optimizer", "optimizer+gradients", "params"}) {
    add({kind});
    add({kind, "activations"});
  }
  return list;
}

}  // namespace

Dimension offload() {
  return {.name = "offload",
          .cost = "copies over PCIe, and an update on the CPU",
          .fields = {"offload"},
          .choices = choices};
}

}  // namespace vramfit::dimension
