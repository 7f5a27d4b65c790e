#include "program/pytorch/zero/zero3_inference.h"

#include <utility>

#include "base/numbers/index.h"
#include "job/stacks/zero3_auto.h"
#include "program/pytorch/zero/zero3.h"
#include "program/stages/offload.h"

namespace vramfit::eager {

using Pass = Zero3Coordinator::Pass;

namespace {

/// TRL makes its engine before the Trainer fills in what is "auto", and DeepSpeed leaves that out. A size that has the
/// value of auto is taken for it.
Zero3Sizes sizes_of(const Graph& graph, const Job& job) {
  const int table = graph.segments.front().ops.front().parameters.front().parameter;
  const std::int64_t hidden = graph.parameters[at(table)].shape.back();
  const Zero3Sizes usual;
  Zero3Sizes sizes = job.zero3_sizes;
  if (sizes.prefetch_bucket_size == auto_prefetch_bucket_size(hidden)) {
    sizes.prefetch_bucket_size = usual.prefetch_bucket_size;
  }
  if (sizes.param_persistence_threshold == auto_param_persistence_threshold(hidden)) {
    sizes.param_persistence_threshold = usual.param_persistence_threshold;
  }
  return sizes;
}

}  // namespace

Zero3Inference::Zero3Inference(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
    : WholeModel(torch, graph, job, modules, "reference"),
      offload_(offload_of(job)),
      coordinator_(torch, job.mesh.shard, sizes_of(graph, job),
                   overlaps_reductions(job) ? Stream::reference : Stream::compute, offload_.parameters),
      modules_(outer_modules(job)) {
  for (const Trained& p : parameters()) coordinator_.add(p, p.elements, job.precision.compute, false);
  coordinator_.set_model_order(parameters());
  torch.set_module_hooks(this);
}

/// zero.Init
void Zero3Inference::load() {
  Heap& heap = torch().heap();
  const Scope scope(heap, "reference");
  for (PartedParameter& p : coordinator_.parameters()) {
    const Tensor whole = heap.make(p.trained->elements, p.dtype, Category::parameters, "made " + p.trained->name);
    heap.run("aten::normal_", {writes(whole)});
    p.part = part_of(heap, p, whole, offload_);
  }
}

void Zero3Inference::begin_forward() {
  coordinator_.begin();
  for (const Submodule& module : modules_) coordinator_.fetch(module, Pass::forward);
}

Tensor Zero3Inference::enter(const Submodule& module, Tensor input) {
  coordinator_.fetch(module, Pass::forward);
  return input;
}

Tensor Zero3Inference::leave(const Submodule& module, Tensor output) {
  coordinator_.release(module, Pass::forward);
  return output;
}

Tensor Zero3Inference::leave_model(Tensor output) {
  for (std::size_t left = modules_.size() - 1; left > 0; --left) output = leave(modules_[left - 1], std::move(output));
  return output;
}

void Zero3Inference::settle() {
  const Scope scope(torch().heap(), "reference settles");
  coordinator_.end_recording();
  coordinator_.gather_for_good();
}

}  // namespace vramfit::eager
