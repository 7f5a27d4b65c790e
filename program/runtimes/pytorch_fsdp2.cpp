// PyTorch's FSDP2 (fully_shard) as torchtitan applies it: a unit for each block, and the root for everything else or
// units of their own for embedding and output.
#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/sharding.h"
#include "program/not_modelled.h"
#include "program/pytorch/fsdp2.h"
#include "program/pytorch/record.h"
#include "program/pytorch/rules.h"
#include "program/runtimes/runtimes.h"

namespace vramfit {

namespace {

using eager::Fsdp2;
using eager::Heap;
using eager::Module;
using eager::reads;
using eager::Tensor;
using eager::Torch;
using eager::Trained;
using eager::writes;

class Sharded final : public eager::Wrapper {
 public:
  Sharded(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
      : torch_(torch), fsdp_(torch, job), groups_(modules.size(), -1) {
    const auto wrap = [&](std::size_t m, bool reshards) {
      groups_[m] = fsdp_.add_group(modules[m].name, graph, modules[m].parameters, reshards);
    };
    const std::size_t last = modules.size() - 1;
    if (job.wrap_embeddings) {
      wrap(0, block_reshards(job, false));
      wrap(last, std::holds_alternative<ReshardAlways>(job.reshard));
    }
    for (std::size_t m = 1; m < last; ++m) wrap(m, block_reshards(job, m + 1 == last));
    std::vector<int> others;
    for (std::size_t m = 0; m <= last; ++m) {
      const std::vector<int>& parameters = modules[m].parameters;
      order_.insert(order_.end(), parameters.begin(), parameters.end());
      if (groups_[m] < 0) others.insert(others.end(), parameters.begin(), parameters.end());
    }
    if (!others.empty())
      root_ = fsdp_.add_group("root", graph, others, std::holds_alternative<ReshardAlways>(job.reshard));
  }

  void load() override {
    for (const auto& [group, parameter] : in_order()) fsdp_.load(group, *parameter);
  }
  void begin_forward() override {
    fsdp_.begin_forward();
    if (root_ >= 0) fsdp_.pre_forward(root_, {});
  }
  void end_forward(const Tensor& logits) override {
    if (root_ >= 0) fsdp_.post_forward(root_, logits);
    fsdp_.end_forward();
  }
  Tensor pre_forward(std::size_t module, Tensor input) override {
    return groups_[module] < 0 ? std::move(input) : fsdp_.pre_forward(groups_[module], std::move(input));
  }
  void post_forward(std::size_t module, const Tensor& output) override {
    if (groups_[module] >= 0) fsdp_.post_forward(groups_[module], output);
  }
  void finish_backward() override { fsdp_.finish_backward(); }
  void zero_gradients() override { fsdp_.zero_gradients(); }

  std::vector<Trained*> trained() override {
    std::vector<Trained*> list;
    for (const auto& [group, parameter] : in_order()) list.push_back(&parameter->trained);
    return list;
  }
  std::vector<Tensor> gradients() override {
    std::vector<Tensor> list;
    for (const eager::ParameterGroup& group : fsdp_.groups()) list.push_back(group.reduced);
    return list;
  }

  Tensor gradient_of(const Trained& p) override {
    for (const eager::ParameterGroup& group : fsdp_.groups()) {
      const auto has = [&](const eager::ShardedParameter& own) { return &own.trained == &p; };
      if (std::ranges::any_of(group.parameters, has)) return group.reduced;
    }
    return {};
  }

  /// Norms of shards are parts of a sum of squares over ranks.
  Tensor reduced_norms(Tensor norms) override {
    Heap& heap = torch_.heap();
    const auto make = [&](const char* what) {
      return heap.make(norms.elements, norms.dtype, Category::temporaries, what);
    };
    const Tensor powers = make("powers");
    heap.run("aten::pow", {reads(norms), writes(powers)});
    const Tensor copy = make("all-reduce copy");
    heap.run("aten::clone", {reads(powers), writes(copy)});
    heap.wait(heap.start(program::Collective::all_reduce, program::Axis::shard, {changes(copy)}, Stream::compute),
              Stream::compute);
    Tensor roots = make("roots");
    heap.run("aten::pow", {reads(copy), writes(roots)});
    return roots;
  }

 private:
  static bool block_reshards(const Job& job, bool is_last) {
    if (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard)) return false;
    return !std::holds_alternative<ReshardLastKept>(job.reshard) || !is_last;
  }

  /// With its group, each parameter in the order in which the model holds them.
  std::vector<std::pair<int, eager::ShardedParameter*>> in_order() {
    std::vector<std::pair<int, eager::ShardedParameter*>> list;
    for (const int index : order_) {
      for (std::size_t g = 0; g < fsdp_.groups().size(); ++g) {
        for (eager::ShardedParameter& p : fsdp_.groups()[g].parameters) {
          if (p.trained.parameter == index) list.emplace_back(static_cast<int>(g), &p);
        }
      }
    }
    return list;
  }

  Torch& torch_;
  Fsdp2 fsdp_;
  std::vector<int> groups_;  // by module; -1: the root's
  std::vector<int> order_;   // of parameters
  int root_ = -1;            // -1: the root has no parameters
};

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  return std::make_unique<Sharded>(torch, graph, job, modules);
}

constexpr std::array<std::string_view, 1> kHonoured{"wrap_embeddings"};

void require(const Job& job, const Cluster& cluster) {
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch-fsdp2");
  job_field_named("precision").set(modelled, "bf16-mixed");
  job_field_named("loss").set(modelled, "full");
  eager::require_rules(job, modelled, cluster, kHonoured);
  if (job.accumulation > 1) refuse_field(job, "grad_accum");
  if (job.mesh.shard < 2) throw NotModelled("runtime pytorch-fsdp2 on one shard");
  if (std::holds_alternative<ReshardGroups>(job.reshard)) refuse_field(job, "reshard");
}

program::Program make(const program::LowerInputs& inputs) { return eager::record(inputs, wrap); }

}  // namespace

RuntimeRow pytorch_fsdp2_row() { return {.require_rules = require, .make_program = make}; }

}  // namespace vramfit
