#include "program/pytorch/loops/reference_model.h"

#include <utility>
#include <vector>

#include "base/numbers/index.h"
#include "job/sharding/sharding.h"
#include "program/pytorch/wrappers/fsdp2.h"
#include "program/pytorch/wrappers/whole_model.h"
#include "program/pytorch/zero/zero3_inference.h"

namespace vramfit::eager {

namespace {

/// One unit of fully_shard (trl/models/utils.py: prepare_fsdp), which each forward gathers as a whole.
class OneUnit final : public Wrapper {
 public:
  OneUnit(const LoopParts& parts, const std::vector<Module>& modules)
      : fsdp_(parts.torch, parts.graph, parts.job, Stream::reference) {
    std::vector<int> all;
    for (const Module& module : modules) {
      const std::vector<int> more = module.all();
      all.insert(all.end(), more.begin(), more.end());
    }
    group_ = fsdp_.add_group("reference", all, sharding_named(parts.job.sharding).reshard);
  }

  void load() override {
    const std::vector<Tensor> whole = fsdp_.move_whole(group_);
    for (ShardedParameter& p : fsdp_.groups()[at(group_)].parameters) fsdp_.load(group_, p);
  }
  void begin_forward() override {
    fsdp_.begin_forward();
    fsdp_.pre_forward(group_, {});
  }
  void end_module(const Tensor& output) override { fsdp_.post_forward(group_, output); }
  void end_forward(const Tensor& /*output*/) override { fsdp_.end_forward(); }
  void zero_gradients() override {}
  std::vector<Trained*> trained() override { return {}; }
  std::vector<Tensor> gradients() override { return {}; }
  Tensor gradient_of(const Trained& /*parameter*/) override { return {}; }

 private:
  Fsdp2 fsdp_;
  int group_;
};

std::unique_ptr<Wrapper> wrapper_of(const LoopParts& parts, const std::vector<Module>& modules) {
  if (parts.job.runtime == Runtime::pytorch_fsdp2) return std::make_unique<OneUnit>(parts, modules);
  if (parts.job.runtime == Runtime::deepspeed && parts.job.sharding == "full-shard") {
    return std::make_unique<Zero3Inference>(parts.torch, parts.graph, parts.job, modules);
  }
  return std::make_unique<WholeModel>(parts.torch, parts.graph, parts.job, modules, "reference");
}

/// As a model is that doesn't train.
Graph without_dropout(Graph graph) {
  graph.dropout = {};
  return graph;
}

/// The Trainer gives Liger's kernels to the model that it trains; the rotation alone is replaced for all models of its
/// family (liger_kernel 0.8, transformers/monkey_patch.py).
Job without_patches(Job job) {
  job.liger.rms_norm = job.liger.swiglu = job.liger.geglu = false;
  return job;
}

}  // namespace

ReferenceModel::ReferenceModel(const LoopParts& parts)
    : torch_(parts.torch),
      graph_(without_dropout(parts.graph)),
      model_(make_model(graph_, without_patches(parts.job), parts.torch)) {
  torch_.exchange_models();
  wrapper_ = wrapper_of(parts, model_->modules());
  torch_.exchange_models();
}

void ReferenceModel::end_step() {
  if (!std::exchange(is_settled_, true) && forwards_ == 1) {
    torch_.exchange_models();
    wrapper_->settle();
    torch_.exchange_models();
  }
}

void ReferenceModel::load() {
  torch_.exchange_models();
  wrapper_->load();
  model_->load();
  torch_.exchange_models();
}

}  // namespace vramfit::eager
