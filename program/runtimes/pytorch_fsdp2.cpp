// PyTorch's FSDP2 (fully_shard): a model whose modules are sharded, and what there are no rules for.
#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/sharding/sharding.h"
#include "program/not_modelled.h"
#include "program/pytorch/rules.h"
#include "program/pytorch/walk/record.h"
#include "program/pytorch/wrappers/fsdp2.h"
#include "program/runtimes/fsdp2_units.h"
#include "program/runtimes/runtimes.h"
#include "program/stages/adapters.h"
#include "program/stages/wrapping.h"

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

/// Inductor copies inputs that don't begin at such multiples, unless it has compiled a function with one that doesn't.
void require_aligned_gradients(const Job& job, const std::vector<eager::ParameterGroup>& groups) {
  constexpr std::int64_t kAlignmentBytes = 16;
  if (job.optimizer_implementation != OptimizerImplementation::torchao) return;
  for (const eager::ParameterGroup& group : groups) {
    Bytes offset;  // in the group's reduced gradients
    for (const eager::ShardedParameter& p : group.parameters) {
      if (!p.is_trained) continue;
      if (offset.n % kAlignmentBytes != 0) {
        throw NotModelled(
            fmt::format("--optimizer {} with FSDP2 over {} GPUs (the gradient of {} begins at no multiple of {} bytes "
                        "there, and the compiled update copies it: a number of GPUs that divides all sizes is)",
                        job_field_named("optimizer").get(job), job.mesh.shard, p.trained.name, kAlignmentBytes));
      }
      offset += p.trained.elements * dtype_bytes(p.dtype);
    }
  }
}

class Sharded final : public eager::Wrapper {
 public:
  Sharded(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
      : torch_(torch),
        graph_(graph),
        is_trainer_(has_trainer(job)),
        is_sent_(uses_accelerate(job) || job.modeling == Modeling::torchtune),
        moves_units_(is_trainer_ || (uses_accelerate(job) && job.method == Method::qlora)),
        fsdp_(torch, graph, job) {
    units_ = fsdp2_units(graph, job, modules);
    std::vector<bool> is_taken(graph.parameters.size(), false);
    for (const Fsdp2Unit& unit : units_) {
      for (const int p : unit.parameters) is_taken[static_cast<std::size_t>(p)] = true;
    }
    std::vector<int> others;
    for (const Module& module : modules) {
      for (const int p : module.all()) {
        order_.push_back(p);
        if (!is_taken[static_cast<std::size_t>(p)]) others.push_back(p);
      }
    }
    const bool is_torchtune = job.modeling == Modeling::torchtune;
    const bool root_reshards =
        is_torchtune ? block_reshards(job, false) : std::holds_alternative<ReshardAlways>(job.reshard);
    if (!others.empty()) root_ = fsdp_.add_group("root", others, root_reshards);
    std::vector<Fsdp2Unit*> in_model;
    for (Fsdp2Unit& unit : units_) in_model.push_back(&unit);
    std::ranges::stable_sort(in_model, {}, &Fsdp2Unit::first);
    for (Fsdp2Unit* unit : in_model) unit->group = fsdp_.add_group(unit->name, unit->parameters, unit->reshards);
    require_aligned_gradients(job, fsdp_.groups());
    places_.resize(graph.parameters.size());
    for (std::size_t g = 0; g < fsdp_.groups().size(); ++g) {
      for (eager::ShardedParameter& p : fsdp_.groups()[g].parameters) {
        places_[static_cast<std::size_t>(p.trained.parameter)] = {static_cast<int>(g), &p};
      }
    }
  }

  /// torchtitan makes shards alone. accelerate gets a model on the host, and keeps what embedding and output were until
  /// all units are made; with cpu_ram_efficient_loading, which `accelerate config` suggests and a loop of one's own
  /// has, it sends parameters to all ranks one by one (utils/fsdp_utils.py: fsdp2_load_full_state_dict), if none has 4
  /// bits.
  void load() override {
    if (!moves_units_) {
      for (const int index : order_) {
        const Place& place = place_of(index);
        Tensor whole;
        if (is_sent_) whole = fsdp_.move_whole(place.group, *place.parameter);
        fsdp_.load(place.group, *place.parameter);
      }
      return;
    }
    std::vector<Tensor> ends;
    for (const Fsdp2Unit& unit : units_) {
      std::vector<Tensor> whole = fsdp_.move_whole(unit.group);
      for (eager::ShardedParameter& p : group_of(unit).parameters) fsdp_.load(unit.group, p);
      if (unit.is_end) std::ranges::move(whole, std::back_inserter(ends));
    }
    if (root_ < 0) return;
    const std::vector<Tensor> whole = fsdp_.move_whole(root_);
    for (eager::ShardedParameter& p : fsdp_.groups()[static_cast<std::size_t>(root_)].parameters) fsdp_.load(root_, p);
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
    const auto unit = std::ranges::find(units_, module, &Fsdp2Unit::first);
    if (unit == units_.end() || std::exchange(unit->is_open, true)) return input;
    return fsdp_.pre_forward(unit->group, std::move(input));
  }
  void post_forward(std::size_t module, const Tensor& output) override {
    const auto unit = std::ranges::find(units_, module, &Fsdp2Unit::last);
    if (unit == units_.end()) return;
    unit->is_open = false;
    fsdp_.post_forward(unit->group, output);
  }
  Tensor pre_output(Tensor normed) override {
    const auto unit = std::ranges::find(units_, kOutput, &Fsdp2Unit::first);
    return unit == units_.end() ? std::move(normed) : fsdp_.pre_forward(unit->group, std::move(normed));
  }
  void post_output(const Tensor& logits) override {
    const auto unit = std::ranges::find(units_, kOutput, &Fsdp2Unit::last);
    if (unit != units_.end()) fsdp_.post_forward(unit->group, logits);
  }
  Tensor gathered_alone(int parameter) override {
    const Place& place = place_of(parameter);
    return fsdp_.full_tensor(place.group, *place.parameter);
  }
  void finish_backward() override {
    fsdp_.finish_backward();
    for (Fsdp2Unit& unit : units_) unit.is_open = false;
  }
  void zero_gradients() override { fsdp_.zero_gradients(); }
  void update_in_backward(const std::function<void(Trained&)>& update) override { fsdp_.update_in_backward(update); }
  void sync_gradients(bool is_last) override { fsdp_.sync_gradients(is_last); }

  std::vector<Trained*> trained() override {
    std::vector<Trained*> list;
    for (const int index : order_) {
      eager::ShardedParameter& parameter = *place_of(index).parameter;
      if (parameter.is_trained) list.push_back(&parameter.trained);
    }
    return list;
  }
  std::vector<Tensor> gradients() override {
    std::vector<Tensor> list;
    for (const eager::ParameterGroup& group : fsdp_.groups()) {
      if (group.reduced.storage) list.push_back(group.reduced);
      for (const eager::ShardedParameter& p : group.parameters) {
        if (p.gradient_on_host.storage) list.push_back(p.gradient_on_host);
      }
    }
    return list;
  }

  bool updates_on_host() const override { return fsdp_.offloads(); }

  Tensor gradient_of(const Trained& p) override {
    if (fsdp_.offloads()) return place_of(p.parameter).parameter->gradient_on_host;
    return fsdp_.groups()[static_cast<std::size_t>(place_of(p.parameter).group)].reduced;
  }

  /// The Trainer's weights decay apart from its vectors, which don't. A unit's gradients are in one buffer, which both
  /// groups may have parts of.
  std::vector<eager::OptimizerGroup> groups() override {
    if (!is_trainer_) return Wrapper::groups();
    eager::ByDecay split = eager::split_by_decay(trained(), graph_);
    eager::OptimizerGroup decaying{std::move(split.decaying), {}}, others{std::move(split.others), {}};
    for (eager::OptimizerGroup* group : {&decaying, &others}) {
      for (const Trained* p : group->parameters) {
        Tensor gradient = gradient_of(*p);
        const auto is_same = [&](const Tensor& t) { return t.storage.buffer() == gradient.storage.buffer(); };
        if (std::ranges::none_of(group->gradients, is_same)) group->gradients.push_back(std::move(gradient));
      }
    }
    return {std::move(decaying), std::move(others)};
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
  eager::ParameterGroup& group_of(const Fsdp2Unit& unit) {
    return fsdp_.groups()[static_cast<std::size_t>(unit.group)];
  }

  /// Where a parameter is: its group, and itself.
  struct Place {
    int group = -1;
    eager::ShardedParameter* parameter = nullptr;
  };
  const Place& place_of(int parameter) const { return places_[static_cast<std::size_t>(parameter)]; }

  Torch& torch_;
  const Graph& graph_;
  bool is_trainer_, is_sent_, moves_units_;
  Fsdp2 fsdp_;
  std::vector<Fsdp2Unit> units_;
  std::vector<int> order_;     // of parameters: as the model holds them
  std::vector<Place> places_;  // by parameter
  int root_ = -1;              // -1: the root has no parameters
};

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  return std::make_unique<Sharded>(torch, graph, job, modules);
}

constexpr std::array<std::string_view, 2> kHonoured{"wrap", "wrap_embeddings"};
constexpr std::array<std::string_view, 11> kWithAdapters{"wrap",       "wrap_embeddings", "method",       "lora_rank",
                                                         "lora_alpha", "lora_dropout",    "lora_targets", "rslora",
                                                         "dora",       "frozen_dtype",    "quantization"};

bool is_of_bitsandbytes(const Job& job) {
  const bool is_torchaos = job.optimizer_implementation == OptimizerImplementation::torchao;
  return !is_torchaos &&
         (job.optimizer == "adamw-8bit" || job.optimizer_implementation == OptimizerImplementation::paged);
}

/// Rehearsed: bitsandbytes' updates have no sharding strategy (torch/distributed/tensor/_sharding_prop.py), or mix both
/// kinds of tensors themselves; Adafactor.step (transformers/optimization.py) adds a plain tensor to a DTensor.
[[noreturn]] void refuse_sharded_optimizer(const Job& job) {
  throw LibraryFails(fmt::format("--optimizer {} with FSDP2 (its first step fails on sharded weights; adamw works)",
                                 job_field_named("optimizer").get(job)));
}

/// What accelerate and torchtune have no choice of.
void require_usual_sharding(const Job& job) {
  if (!std::holds_alternative<ReshardByDefault>(job.reshard)) refuse_field(job, "reshard");
  if (job.mesh.replicate == 1) return;
  throw NotModelled(
      fmt::format("--modeling {} with replicas (sharding over all ranks is)", job_field_named("modeling").get(job)));
}

/// What accelerate sets up, for a Trainer's `fsdp` or by its plugin in a loop of one's own.
void require_accelerate(const Job& job, Job& modelled) {
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  const bool is_torchaos = job.optimizer_implementation == OptimizerImplementation::torchao;
  if (is_torchaos && !job.offload.empty()) {
    throw NotModelled(fmt::format("--optimizer {} with --offload {} and FSDP2 (without offload it is)",
                                  value("optimizer"), value("offload")));
  }
  if (job.optimizer == "adafactor" || is_of_bitsandbytes(job)) refuse_sharded_optimizer(job);
  if (job.optimizer != "adamw" && !is_torchaos) refuse_field(job, "optimizer");
  job_field_named("precision").set(modelled, job.precision.name);
  if (has_trl(job)) eager::require_trl_adapters(job, modelled);
  // Rehearsed: TRL computes log-probabilities where the output layer's weights are, and the batch's mask is on the GPU.
  if (job.modeling == Modeling::trl_dpo && !job.offload.empty()) {
    throw LibraryFails(
        fmt::format("--offload {} with --modeling trl-dpo (DPOTrainer's first step fails; without offload "
                    "it works)",
                    value("offload")));
  }
  const bool is_adapted_grpo = job.modeling == Modeling::trl_grpo && job.method != Method::full;
  if (is_adapted_grpo && !job.offload.empty()) {  // rehearsed: the same, unless the output layer is the embedding
    throw NotModelled(
        fmt::format("--offload {} with --modeling trl-grpo and --method {} (GRPOTrainer's first step fails where the "
                    "output layer is a matrix of its own; without offload it works)",
                    value("offload"), value("method")));
  }
  if (eager::is_mixed_in_16_bits(job)) {
    const std::string_view computed = dtype_name(job.precision.compute);
    if (value("reduce_dtype") != computed) {
      throw NotModelled(fmt::format("--reduce-dtype {0} (accelerate reduces in {1}: --reduce-dtype {1})",
                                    value("reduce_dtype"), computed));
    }
    job_field_named("reduce_dtype").set(modelled, computed);
    // accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, before it shards
    const bool is_upcast = job.method != Method::qlora;  // nothing, where it finds weights in 4 bits
    if (is_upcast && job.precision.storage != Dtype::f32) {
      throw NotModelled(
          fmt::format("--storage-dtype {} (with FSDP2 accelerate makes trained weights fp32, whatever the checkpoint "
                      "has: --storage-dtype fp32 --state-dtype fp32)",
                      value("storage_dtype")));
    }
  }
  if (!std::holds_alternative<WrapLayers>(job.wrap)) {
    throw NotModelled(fmt::format(
        "--wrap {} with accelerate's FSDP2 (units of a layer are: --wrap layer, its TRANSFORMER_BASED_WRAP)",
        value("wrap")));
  }
  if (!job.wrap_embeddings) {
    throw NotModelled("--wrap-embeddings off (accelerate gives them units of their own: --wrap-embeddings on)");
  }
  require_usual_sharding(job);
  const std::vector<std::string> kinds{"params"};
  if (!job.offload.empty() && job.offload != kinds) {
    throw NotModelled(fmt::format("--offload {} with FSDP2 (its cpu_offload is --offload params)", value("offload")));
  }
}

/// full_finetune_distributed: FSDP2 without a policy, so that gradients are reduced in the dtype of the weights.
void require_sharded_torchtune(const Job& job, Job& modelled) {
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  eager::require_torchtune(job, modelled);
  job_field_named("precision").set(modelled, job.precision.name);
  if (is_of_bitsandbytes(job)) refuse_sharded_optimizer(job);
  if (!std::holds_alternative<WrapLayers>(job.wrap)) {
    throw NotModelled(
        fmt::format("--wrap {} with --modeling torchtune (units of a layer are: --wrap layer)", value("wrap")));
  }
  require_usual_sharding(job);
}

/// torchtitan 0.2 (models/llama3/infra/parallelize.py: apply_fsdp), which wraps one way.
void require_torchtitan_02(const Job& job) {
  if (job.modeling != Modeling::torchtitan_02) return;
  if (std::holds_alternative<ReshardLastKept>(job.reshard)) refuse_field(job, "reshard");
  if (!std::holds_alternative<WrapLayers>(job.wrap)) refuse_field(job, "wrap");
  if (!job.wrap_embeddings) refuse_field(job, "wrap_embeddings");
}

void require(const Job& job, const Cluster& cluster) {
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch-fsdp2");
  job_field_named("precision").set(modelled, "bf16-mixed");
  eager::require_loss(job, modelled);
  if (uses_accelerate(job)) require_accelerate(job, modelled);
  if (job.modeling == Modeling::torchtune) require_sharded_torchtune(job, modelled);
  const bool adapts = (uses_accelerate(job) || job.modeling == Modeling::torchtune) && job.method != Method::full;
  eager::require_rules(job, modelled, cluster, adapts ? std::span<const std::string_view>(kWithAdapters) : kHonoured);
  eager::require_quantization(job);
  if (!is_by_layer(job.wrap)) refuse_field(job, "wrap");
  require_torchtitan_02(job);
  if (job.accumulation > 1 && job.modeling == Modeling::torchtitan) refuse_field(job, "grad_accum");
  if (job.mesh.shard < 2 && is_torchtitan(job)) {
    throw NotModelled(fmt::format(
        "--sharding {} with one shard and torchtitan (--sharding full-shard on several GPUs is; DDP is with "
        "--stack transformers, TRL's and accelerate)",
        job.sharding));
  }
  if (job.mesh.shard < 2) {
    throw NotModelled(fmt::format(
        "--sharding {} with --runtime pytorch-fsdp2 on one shard (--runtime pytorch-ddp has copies)", job.sharding));
  }
  if (std::holds_alternative<ReshardGroups>(job.reshard)) refuse_field(job, "reshard");
}

program::Program make(const program::LowerInputs& inputs) { return eager::record(inputs, wrap); }

}  // namespace

RuntimeRow pytorch_fsdp2_row() { return {.require_rules = require, .make_program = make}; }

}  // namespace vramfit
