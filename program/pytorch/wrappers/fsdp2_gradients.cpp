// What FSDP2 does with gradients once they are reduced (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:
// foreach_reduce).
#include <utility>

#include "program/pytorch/wrappers/fsdp2.h"

namespace vramfit::eager {

/// Into page-locked memory, parameter by parameter. What was reduced is freed on the stream of the
/// copies, which needs no wait.
void Fsdp2::move_gradients_to_host(ParameterGroup& group) {
  Heap& heap = torch_.heap();
  for (ShardedParameter& p : group.parameters) {
    if (!p.is_trained) continue;
    p.gradient_on_host =
        heap.make_pinned(p.trained.elements, p.dtype, Category::gradients, "gradient of " + p.trained.name);
    heap.copy_over_link(group.reduced, p.gradient_on_host, Stream::reduce_scatter);
  }
  group.left = heap.record(Stream::reduce_scatter);
  group.reduced = {};
}

/// foreach_reduce's local names what was reduced until it returns.
void Fsdp2::update_reduced(ParameterGroup& group) {
  Heap& heap = torch_.heap();
  heap.current = Stream::reduce_scatter;
  for (ShardedParameter& p : group.parameters) {
    if (p.is_trained) update_(p.trained);
  }
  heap.current = Stream::compute;
  group.reduced = {};
  group.converted = heap.record(Stream::reduce_scatter);
}

void Fsdp2::release_reduce_input() {
  if (!held_reduce_input_.storage) return;
  torch_.heap().wait(held_reduced_, Stream::compute);
  held_reduce_input_ = {};
}

}  // namespace vramfit::eager
