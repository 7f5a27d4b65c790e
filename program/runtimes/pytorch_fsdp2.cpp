// PyTorch's FSDP2 (fully_shard): a model whose modules are sharded.
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
#include "job/stacks/axolotl_fsdp2.h"
#include "program/not_modelled.h"
#include "program/pytorch/rules.h"
#include "program/pytorch/walk/record.h"
#include "program/pytorch/wrappers/fsdp2.h"
#include "program/pytorch/wrappers/fsdp2_adapters.h"
#include "program/runtimes/fsdp2_rules.h"
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
        ends_with_module_(is_axolotls_fsdp2(job)),
        is_loaded_whole_(ends_with_module_ && job.method == Method::qlora),
        fsdp_(torch, graph, job),
        adapters_(fsdp_, graph.parameters.size()) {
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
    const bool is_as_blocks = job.modeling == Modeling::torchtune || is_axolotls_fsdp2(job);
    const bool root_reshards =
        is_as_blocks ? block_reshards(job, false) : std::holds_alternative<ReshardAlways>(job.reshard);
    if (!others.empty()) root_ = fsdp_.add_group("root", others, root_reshards);
    std::vector<Fsdp2Unit*> in_model;
    for (Fsdp2Unit& unit : units_) in_model.push_back(&unit);
    std::ranges::stable_sort(in_model, {}, &Fsdp2Unit::first);
    for (Fsdp2Unit* unit : in_model) {
      unit->group = fsdp_.add_group(unit->name, unit->parameters, unit->reshards);
      if (unit->is_adapter) adapters_.add(unit->parameters.front(), unit->group);
    }
    if (is_axolotls_fsdp2(job) && has_adapters(job)) torch.set_module_hooks(&adapters_);
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
    if (is_loaded_whole_) return shard_whole_model();
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
  /// A root that is released there is so before what the model returns is converted.
  void end_module(const Tensor& output) override {
    if (ends_with_module_) fsdp_.post_forward(root_, output);
  }
  void end_forward(const Tensor& logits) override {
    if (root_ >= 0 && !ends_with_module_) fsdp_.post_forward(root_, logits);
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
  /// axolotl has transformers quantize the model on the card, and keeps all of it until it is sharded
  /// (loaders/model.py: _set_device_map_config; monkeypatch/accelerate/fsdp2.py: original_sd).
  void shard_whole_model() {
    std::vector<Tensor> model;
    const auto groups = static_cast<int>(fsdp_.groups().size());
    for (int g = 0; g < groups; ++g) std::ranges::move(fsdp_.move_whole(g), std::back_inserter(model));
    for (int g = 0; g < groups; ++g) {
      for (eager::ShardedParameter& p : fsdp_.groups()[static_cast<std::size_t>(g)].parameters) fsdp_.load(g, p);
    }
  }

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
  bool is_trainer_, is_sent_, moves_units_, ends_with_module_, is_loaded_whole_;
  Fsdp2 fsdp_;
  eager::Fsdp2Adapters adapters_;
  std::vector<Fsdp2Unit> units_;
  std::vector<int> order_;     // of parameters: as the model holds them
  std::vector<Place> places_;  // by parameter
  int root_ = -1;              // -1: the root has no parameters
};

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  return std::make_unique<Sharded>(torch, graph, job, modules);
}

program::Program make(const program::LowerInputs& inputs) { return eager::record(inputs, wrap); }

}  // namespace

RuntimeRow pytorch_fsdp2_row() { return {.require_rules = require_fsdp2, .make_program = make}; }

}  // namespace vramfit
