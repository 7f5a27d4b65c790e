// PyTorch's FSDP1 (FullyShardedDataParallel) as accelerate sets it up for transformers' Trainer from a configuration
// with `fsdp_version: 1`: each block is a unit, and what is in none belongs to the root's.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/numbers/index.h"
#include "job/fields/job_fields.h"
#include "job/sharding/sharding.h"
#include "program/not_modelled.h"
#include "program/pytorch/modelings/segment_reader.h"
#include "program/pytorch/rules.h"
#include "program/pytorch/walk/record.h"
#include "program/pytorch/wrappers/fsdp1.h"
#include "program/pytorch/wrappers/module_hooks.h"
#include "program/runtimes/runtimes.h"
#include "program/stages/adapters.h"
#include "program/stages/wrapping.h"

namespace vramfit {

namespace {

using eager::changes;
using eager::FlatParameter;
using eager::FlatUnit;
using eager::Heap;
using eager::Module;
using eager::reads;
using eager::Scope;
using eager::Tensor;
using eager::Torch;
using eager::Trained;
using eager::writes;

/// Blocks are units, and what is in none belongs to the root's. PEFT's policy makes one of each layer with a weight
/// that is trained, too, which are an adapter's two (peft/utils/other.py: fsdp_auto_wrap_policy).
class FlatSharded final : public eager::Wrapper, public eager::ModuleHooks {
 public:
  FlatSharded(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
      : torch_(torch), graph_(graph), precision_(job.precision), fsdp_(torch, graph, job) {
    const bool reshards = sharding_named(job.sharding).reshard;
    std::vector<int> root = modules.front().all();
    head_ = modules.back().all();
    root.insert(root.end(), head_.begin(), head_.end());
    fsdp_.add_unit({kRootUnit, root, true, reshards});
    if (has_adapters(job)) {
      of_adapter_.assign(graph.parameters.size(), -1);
      torch.set_module_hooks(this);
    }
    of_module_.push_back(kRoot);
    for (std::size_t m = 1; m + 1 < modules.size(); ++m) add_block(modules[m], reshards);
  }

  /// Inner units are made before those around them.
  void load() override {
    for (auto block = of_module_.rbegin(); block != of_module_.rend(); ++block) {
      const int next = block == of_module_.rbegin() ? static_cast<int>(fsdp_.units().size()) : *(block - 1);
      for (int adapter = *block + 1; adapter < next && *block != kRoot; ++adapter) fsdp_.load(adapter);
      fsdp_.load(*block);
    }
    for (FlatUnit& unit : fsdp_.units()) widen(unit);
  }

  std::optional<Dtype> dtype_of_buffers() const override {
    return precision_.compute == precision_.storage ? std::nullopt : std::optional(precision_.compute);
  }
  void enter_model() override { fsdp_.begin_forward(); }
  void begin_forward() override { fsdp_.pre_forward(kRoot, {}); }
  void end_forward(const Tensor& loss) override { fsdp_.post_forward(kRoot, loss); }
  Tensor pre_forward(std::size_t module, Tensor input) override {
    if (is_block(module)) fsdp_.pre_forward(of_module_[module], input);
    return input;
  }
  void post_forward(std::size_t module, const Tensor& output) override {
    if (is_block(module)) fsdp_.post_forward(of_module_[module], output);
  }
  Tensor enter(const eager::Submodule& module, Tensor input) override {
    const int unit = unit_of(module);
    if (unit >= 0) fsdp_.pre_forward(unit, input);
    return input;
  }
  Tensor leave(const eager::Submodule& module, Tensor output) override {
    const int unit = unit_of(module);
    if (unit >= 0) fsdp_.post_forward(unit, output);
    return output;
  }
  void reach(const eager::Submodule& /*module*/, int /*parameter*/) override {}
  bool replaces_layers() const override { return false; }
  Tensor values_of(int /*parameter*/) const override { return {}; }
  std::optional<Dtype> seen_dtype(int parameter) const override {
    const FlatUnit& unit = fsdp_.units()[at(of_adapter_[at(parameter)])];
    return unit.is_seen_whole ? precision_.compute : unit.storage;
  }
  void finish_backward() override { fsdp_.finish_backward(); }
  void zero_gradients() override { fsdp_.zero_gradients(); }
  void sync_gradients(bool is_last) override { fsdp_.sync_gradients(is_last); }

  std::vector<Trained*> trained() override {
    std::vector<Trained*> list;
    for (FlatUnit& unit : fsdp_.units()) {
      if (!unit.is_trained) continue;
      for (FlatParameter& p : unit.parameters) {
        if (p.trained.elements > 0) list.push_back(&p.trained);
      }
    }
    return list;
  }
  std::vector<Tensor> gradients() override {
    std::vector<Tensor> list;
    for (const FlatUnit& unit : fsdp_.units()) {
      if (unit.is_trained) list.push_back(fsdp_.gradient_of(unit));
    }
    return list;
  }
  Tensor gradient_of(const Trained& trained) override {
    for (const FlatUnit& unit : fsdp_.units()) {
      for (const FlatParameter& p : unit.parameters) {
        if (&p.trained == &trained) return torch_.heap().narrow(fsdp_.gradient_of(unit), p.begin, p.trained.elements);
      }
    }
    return {};
  }

  /// In the order in which the model holds parameters: what the root has at the end comes last.
  std::vector<eager::OptimizerGroup> groups() override {
    std::vector<Trained*> list = trained();
    std::ranges::stable_partition(list, [&](const Trained* p) { return !is_of_head(p->parameter); });
    eager::ByDecay split = eager::split_by_decay(list, graph_);
    eager::OptimizerGroup decaying{std::move(split.decaying), {}}, others{std::move(split.others), {}};
    for (eager::OptimizerGroup* group : {&decaying, &others}) {
      for (const Trained* p : group->parameters) group->gradients.push_back(gradient_of(*p));
    }
    return {std::move(decaying), std::move(others)};
  }

  bool updates_on_host() const override { return fsdp_.offloads(); }
  bool clips_itself() const override { return true; }
  Tensor clip() override;

 private:
  static constexpr int kRoot = 0;
  bool is_block(std::size_t module) const { return module > 0 && module < of_module_.size(); }
  int unit_of(const eager::Submodule& module) const {
    return module.parameters.size() == 1 ? of_adapter_[at(module.parameters.front())] : -1;
  }
  void widen(FlatUnit& unit);
  void add_block(const Module& block, bool reshards);
  Tensor norm_of_parts();
  Tensor norm_from_host();
  void scale_on_host();
  bool is_of_head(int parameter) const { return std::ranges::find(head_, parameter) != head_.end(); }

  Torch& torch_;
  const Graph& graph_;
  Precision precision_;
  eager::Fsdp1 fsdp_;
  std::vector<int> head_;        // of norm and output layer, which the model has behind its blocks
  std::vector<int> of_module_;   // the root's unit, and that of each block
  std::vector<int> of_adapter_;  // the unit of a parameter that an adapter has, or -1; empty: there are no adapters
  Tensor zero_;
};

void FlatSharded::add_block(const Module& block, bool reshards) {
  std::vector<int> own, of_adapters;
  const std::vector<bool> are_adapters =
      of_adapter_.empty() ? std::vector<bool>(graph_.parameters.size(), false) : adapter_parameters(graph_);
  for (const int parameter : block.all()) (are_adapters[at(parameter)] ? of_adapters : own).push_back(parameter);
  of_module_.push_back(fsdp_.add_unit({block.name, own, false, reshards}));
  for (const int parameter : of_adapters) {
    of_adapter_[at(parameter)] = fsdp_.add_unit({graph_.parameters[at(parameter)].name, {parameter}, false, reshards});
  }
}

/// accelerate/accelerator.py: prepare_model, of what is trained and was loaded in 16 bits.
void FlatSharded::widen(FlatUnit& unit) {
  if (unit.loaded == unit.storage) return;
  Heap& heap = torch_.heap();
  const Scope scope(heap, unit.parts.name);
  Tensor wide = heap.make(unit.shard.elements, unit.storage, Category::parameters, "shard of the flat parameter");
  heap.run("aten::_to_copy", {reads(unit.shard), writes(wide)});
  unit.as_loaded = std::exchange(unit.shard, std::move(wide));
  for (FlatParameter& p : unit.parameters) {
    if (p.trained.elements > 0) p.trained.value = heap.narrow(unit.shard, p.begin, p.trained.elements);
  }
}

/// _get_grad_norm
Tensor FlatSharded::norm_of_parts() {
  Heap& heap = torch_.heap();
  std::vector<Tensor> norms;
  for (const Trained* p : trained()) norms.push_back(torch_.vector_norm(gradient_of(*p)));
  const Tensor stacked = heap.make(static_cast<std::int64_t>(norms.size()), Dtype::f32, Category::temporaries, "norms");
  eager::Accesses accesses{writes(stacked)};
  for (const Tensor& each : norms) accesses.push_back(reads(each));
  heap.run("aten::stack", accesses);
  norms.clear();
  return torch_.vector_norm(stacked);
}

/// The same of gradients in host memory: the norm alone comes to the card, where ranks sum it up.
Tensor FlatSharded::norm_from_host() {
  Heap& heap = torch_.heap();
  eager::Accesses accesses;
  double bytes = 0;
  for (const Tensor& gradient : gradients()) {
    accesses.push_back(reads(gradient));
    bytes += eager::bytes_in(gradient);
  }
  heap.run("aten::linalg_vector_norm", accesses, {.bytes = bytes}, Stream::host);
  return torch_.computed("aten::_to_copy", {}, heap.make(1, Dtype::f32, Category::temporaries, "norm"));
}

void FlatSharded::scale_on_host() {
  eager::Accesses accesses;
  double bytes = 0;
  for (const Tensor& gradient : gradients()) {
    accesses.push_back(changes(gradient));
    bytes += eager::bytes_in(gradient);
  }
  torch_.heap().run("aten::mul_", accesses, {.bytes = 2 * bytes}, Stream::host);
}

/// FullyShardedDataParallel.clip_grad_norm_: the norm of each part by itself, in fp32.
Tensor FlatSharded::clip() {
  Heap& heap = torch_.heap();
  const Scope scope(heap, "clip");
  const auto make = [&](std::int64_t elements, const char* what) {
    return heap.make(elements, Dtype::f32, Category::temporaries, what);
  };
  const auto number = [&](const char* call, const Tensor& from, const char* what) {
    return torch_.computed(call, {reads(from)}, make(1, what));
  };
  if (!zero_.storage) zero_ = torch_.computed("aten::zeros", {}, make(1, "norm where there are no gradients"));
  const Tensor norm = updates_on_host() ? norm_from_host() : norm_of_parts();
  Tensor total;
  {
    const Tensor power = number("aten::pow", norm, "power");
    heap.wait(heap.start(program::Collective::all_reduce, program::Axis::shard, {changes(power)}, Stream::compute),
              Stream::compute);
    total = number("aten::pow", power, "total norm");
  }
  if (updates_on_host()) {
    scale_on_host();
    return {};
  }
  Tensor scale;
  {
    const Tensor sum = number("aten::add", total, "total norm and epsilon");
    const Tensor reciprocal = number("aten::reciprocal", sum, "reciprocal");
    scale = number("aten::mul", reciprocal, "scale");
  }
  const Tensor clamped = number("aten::clamp", scale, "clamped scale");
  const Dtype dtype = gradients().front().dtype;
  const auto in_type_of_gradients = [&](const Tensor& x) {
    if (x.dtype == dtype) return x;
    Tensor made = heap.make(1, dtype, Category::temporaries, "number in the gradients' type");
    return torch_.computed("aten::_to_copy", {reads(x)}, std::move(made));
  };
  for (const Trained* p : trained()) {
    const Tensor factor = in_type_of_gradients(clamped);
    heap.run("aten::mul_", {changes(gradient_of(*p)), reads(factor)});
  }
  return in_type_of_gradients(total);
}

std::unique_ptr<eager::Wrapper> wrap_flat(Torch& torch, const Graph& graph, const Job& job,
                                          const std::vector<Module>& modules) {
  return std::make_unique<FlatSharded>(torch, graph, job, modules);
}

constexpr auto kHonouredByFsdp1 =
    std::to_array<std::string_view>({"prefetch", "offload", "method", "lora_rank", "lora_alpha", "lora_dropout",
                                     "lora_targets", "rslora", "frozen_dtype", "quantization"});

[[noreturn]] void refuse_with_fsdp1(const Job& job, std::string_view field, std::string_view what_is) {
  const JobField& row = job_field_named(field);
  throw NotModelled(fmt::format("{} {} with --runtime pytorch-fsdp1 ({})", flag_of(row), row.get(job), what_is));
}

/// accelerate/accelerator.py: prepare_model; accelerate reduces in the dtype that it computes in.
void require_dtypes(const Job& job) {
  const bool is_fused = job.optimizer_implementation == OptimizerImplementation::fused;
  if (job.precision.name == "fp16-mixed" && is_fused) {
    // Rehearsed: ShardedGradScaler's mark has a dimension, AdamW's counters of steps have none (optim/adam.py).
    throw LibraryFails(
        "--precision fp16-mixed with --runtime pytorch-fsdp1 and fused AdamW (its first update fails: --optimizer "
        "adamw:foreach)");
  }
  if (!eager::is_mixed_in_16_bits(job)) return;
  if (job.precision.reduce != job.precision.compute) {
    refuse_with_fsdp1(job, "reduce_dtype", fmt::format("accelerate reduces in {}", dtype_name(job.precision.compute)));
  }
  if (job.precision.storage != Dtype::f32) {
    refuse_with_fsdp1(job, "storage_dtype",
                      "accelerate makes flat parameters fp32, whatever the checkpoint has: --storage-dtype fp32 "
                      "--state-dtype fp32");
  }
}

/// Codes of 4 bits and what isn't quantized are joined, so that all of it has one dtype.
void require_quantized_base(const Job& job) {
  if (job.method != Method::qlora) return;
  if (!sharding_named(job.sharding).reshard) {
    // Rehearsed (distributed/fsdp/_flat_param.py: _writeback_orig_params).
    throw LibraryFails(
        fmt::format("--method qlora with --sharding {} and --runtime pytorch-fsdp1 (FSDP1 takes weights in 4 bits that "
                    "stay gathered for changed ones, and the first backward fails: --sharding {})",
                    job.sharding, sharding_named(job.sharding).hybrid ? "hybrid-shard" : "full-shard"));
  }
  const Dtype computed = job.precision.compute;
  if (job.frozen_dtype.value_or(computed) == computed) return;
  // Rehearsed (distributed/fsdp/_flat_param.py: _validate_tensors_to_flatten).
  const bool is_prepared = *job.frozen_dtype == Dtype::f32;
  throw LibraryFails(fmt::format(
      "--method qlora with --frozen-dtype {0} and --runtime pytorch-fsdp1 (FSDP1 fails to join norms in {0}{2} "
      "with codes of 4 bits in {1}: --frozen-dtype {1})",
      dtype_name(*job.frozen_dtype), dtype_name(computed),
      is_prepared ? ", as prepare_model_for_kbit_training makes them," : ""));
}

void require_fsdp1(const Job& job, const Cluster& cluster) {
  if (cluster.cards() == 1) {
    throw NotModelled(
        "--runtime pytorch-fsdp1 on one GPU, where there is nothing to shard with (--stack transformers without "
        "--runtime is, for transformers' Trainer, and --stack trl for TRL's SFTTrainer)");
  }
  if (job.modeling != Modeling::transformers && job.modeling != Modeling::trl) {
    refuse_with_fsdp1(job, "modeling",
                      "--stack transformers --runtime pytorch-fsdp1 is, for transformers' Trainer, and --stack trl for "
                      "TRL's SFTTrainer");
  }
  if (job.lora.has_magnitudes) refuse_with_fsdp1(job, "dora", "with --runtime pytorch-fsdp2 it is");
  const bool is_paged = job.optimizer_implementation == OptimizerImplementation::paged;
  if (job.optimizer != "adamw" || is_paged) refuse_with_fsdp1(job, "optimizer", "adamw:fused and adamw:foreach are");
  if (job.wrap_embeddings) refuse_with_fsdp1(job, "wrap_embeddings", "accelerate leaves them to the root: off");
  require_dtypes(job);
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch-fsdp1");
  job_field_named("precision").set(modelled, job.precision.name);
  modelled.precision.reduce = job.precision.reduce;
  eager::require_loss(job, modelled);
  if (has_trl(job)) eager::require_trl_adapters(job, modelled);
  if (job.forward_prefetch > 1 || job.prefetch_limit != modelled.prefetch_limit) {
    refuse_with_fsdp1(job, "prefetch", "--prefetch backward=pre|post|none is, and forward=1");
  }
  const std::vector<std::string> offloaded{"params"};
  if (!job.offload.empty() && job.offload != offloaded) {
    refuse_with_fsdp1(job, "offload", "its cpu_offload is --offload params");
  }
  const bool is_plain = job.method == Method::full && job.precision.name == "bf16-mixed" && job.accumulation == 1;
  if (!job.offload.empty() && !is_plain) {
    refuse_with_fsdp1(
        job, "offload",
        "all weights with --precision bf16-mixed and --grad-accum 1 are; --runtime pytorch-fsdp2 has more");
  }
  eager::require_rules(job, modelled, cluster, kHonouredByFsdp1);
  require_quantized_base(job);
  eager::require_quantization(job);
  if (!std::holds_alternative<ReshardByDefault>(job.reshard)) {
    refuse_with_fsdp1(job, "reshard", "--sharding full-shard and shard-grad-op decide");
  }
  if (job.mesh.shard < 2) throw NotModelled("--runtime pytorch-fsdp1 on one shard (--runtime pytorch-ddp has copies)");
  if (job.mesh.replicate > 1 && !sharding_named(job.sharding).hybrid) {
    refuse_with_fsdp1(job, "mesh", "replicas are --sharding hybrid-shard's, a node each");
  }
  if (job.mesh.replicate > 1 && job.mesh.shard != cluster.cards_per_node) {
    refuse_with_fsdp1(job, "mesh",
                      fmt::format("HYBRID_SHARD shards among the {} GPUs of a node", cluster.cards_per_node));
  }
}

program::Program make_fsdp1(const program::LowerInputs& inputs) {
  if (inputs.graph.masked_lm) eager::refuse_model(inputs.job, "BERT with --runtime pytorch-fsdp1");
  return eager::record(inputs, wrap_flat);
}

}  // namespace

RuntimeRow pytorch_fsdp1_row() { return {.require_rules = require_fsdp1, .make_program = make_fsdp1}; }

}  // namespace vramfit
