#include "program/pytorch/zero/zero3.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "program/pytorch/zero/zero_host.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

using Pass = Zero3Coordinator::Pass;

std::vector<Submodule> outer_modules(const Job& job) {
  std::vector<std::string> names{"causal lm", "model"};
  if (has_adapters(job)) names.insert(names.begin(), {"peft", "tuner"});
  std::vector<Submodule> modules;
  for (const std::string& name : names) {
    modules.push_back({.name = name, .parameters = {}, .is_called_by_names = true});
  }
  return modules;
}

Zero3::Zero3(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
    : WholeModel(torch, graph, job, modules),
      ZeroNumbers(torch),
      dtype_(job.precision.compute),
      trained_dtype_(job.precision.storage),
      ranks_(job.mesh.shard),
      bucket_elements_(job.bucket_bytes / dtype_bytes(dtype_).n),
      offload_(offload_of(job)),
      sizes_(job.zero3_sizes),
      gathering_(overlaps_reductions(job) ? Stream::all_gather : Stream::compute),
      reducing_(overlaps_reductions(job) ? Stream::reduce_scatter : Stream::compute),
      coordinator_(torch, ranks_, sizes_, gathering_, offload_.parameters),
      is_loaded_whole_(job.quantization != "none"),
      modules_(outer_modules(job)) {
  add_parameters();
  const std::vector<OptimizerGroup> groups = WholeModel::groups();
  for (std::size_t i = 0; i < groups.size(); ++i) add_groups(groups[i].parameters, i);
  torch.set_module_hooks(this);
  torch.on_gradient([this](int parameter) { take(parameter); });
}

/// Adapters are made and parted when all else is (parameter_offload.py: _convert_to_zero_parameters). A base in 4 bits
/// is loaded whole (transformers/modeling_utils.py: get_init_context), and parted with its adapters, byte by byte.
void Zero3::add_parameters() {
  if (is_loaded_whole_) {
    for (const Trained& p : parameters()) {
      const bool is_trained =
          std::ranges::any_of(trained(), [&](const Trained* t) { return t->parameter == p.parameter; });
      coordinator_.add(p, is_quantized(p) ? ceil_div(p.elements, 2) : p.elements, is_quantized(p) ? Dtype::u8 : dtype_,
                       is_trained);
    }
    return coordinator_.set_model_order(parameters());
  }
  std::set<int> are_trained;
  for (const Trained* p : trained()) are_trained.insert(p->parameter);
  for (const bool is_trained : {false, true}) {
    for (const Trained& p : parameters()) {
      if (are_trained.contains(p.parameter) != is_trained) continue;
      coordinator_.add(p, p.elements, is_trained ? trained_dtype_ : dtype_, is_trained);
    }
  }
  coordinator_.set_model_order(parameters());
}

/// _create_fp16_sub_groups
void Zero3::add_groups(const std::vector<Trained*>& parameters, std::size_t of_optimizer) {
  bool is_full = true;
  for (const Trained* trained : parameters) {
    if (is_full) {
      groups_.emplace_back();
      groups_.back().name = fmt::format("group {}", groups_.size() - 1);
      groups_.back().of_optimizer = of_optimizer;
    }
    Group& group = groups_.back();
    const std::size_t place = coordinator_.place_of(trained->parameter);
    group.parameters.push_back(place);
    group.elements = checked_add(group.elements, coordinator_.parameters()[place].part_elements);
    group.master.name = group.name;
    group.master.elements = group.elements;
    is_full = group.elements >= sizes_.sub_group_size;
  }
}

void Zero3::load() {
  make_parts();
  const Scope scope(heap(), "zero");
  if (!offload_.states) {
    tracker_ = heap().make(1, Dtype::u8, Category::temporaries, "is there an infinite number");
    heap().run("aten::zeros", {writes(tracker_)});
  }
  offload_.parameters ? flatten_on_host() : flatten();
  offload_.states ? make_masters_on_host() : make_masters();
  bucket_ = heap().make(bucket_elements_, dtype_, Category::communication, "bucket of gradients");
  offload_.states ? make_gradients_on_host() : make_gradients();
  norms_.resize(coordinator_.parameters().size());
  gradient_parts_.resize(coordinator_.parameters().size());
  std::int64_t begin = 0;
  for (const Group& group : groups_) {
    for (const std::size_t place : group.parameters) {
      const std::int64_t elements = coordinator_.parameters()[place].part_elements;
      gradient_parts_[place] = heap().narrow(gradients_, begin, elements);
      begin += elements;
    }
  }
  for (const Group& group : groups_) {
    for (const std::size_t place : group.parameters) {
      coordinator_.gather_alone(coordinator_.parameters()[place]);
      coordinator_.let_go(coordinator_.parameters()[place]);
    }
  }
}

void Zero3::make_gradients() {
  gradients_ = heap().make(flat_.elements, dtype_, Category::gradients, "gradients of the parts");
  heap().run("aten::zeros", {});
}

/// zero.Init: each module's parameters are made, and parted at once. PEFT makes all adapters before one is parted.
void Zero3::make_parts() {
  if (is_loaded_whole_) return part_whole_model();
  const Scope scope(heap(), "model");
  const bool has_frozen = std::ranges::any_of(coordinator_.parameters(), std::not_fn(&PartedParameter::gets_gradient));
  std::vector<std::pair<PartedParameter*, Tensor>> adapters;
  for (PartedParameter& p : coordinator_.parameters()) {
    Tensor whole = heap().make(p.trained->elements, p.dtype, Category::parameters, "made " + p.trained->name);
    heap().run("aten::normal_", {writes(whole)});
    if (has_frozen && p.gets_gradient) {
      adapters.emplace_back(&p, std::move(whole));
    } else {
      p.part = part_of(heap(), p, whole, offload_);
    }
  }
  for (auto& [p, whole] : adapters) p->part = part_of(heap(), *p, std::exchange(whole, {}), offload_);
}

void Zero3::part_whole_model() {
  WholeModel::load();
  const Scope scope(heap(), "model");
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    PartedParameter& p = coordinator_.parameters()[i];
    p.part = part_of(heap(), p, std::exchange(parameters()[i].value, {}), offload_);
  }
}

/// _partition_param
Tensor part_of(Heap& heap, const PartedParameter& p, const Tensor& whole, const Offload& offload) {
  const std::string what = "part of " + p.trained->name;
  if (offload.parameters) {  // remote_device
    Tensor there =
        heap.narrow(offloaded(heap, offload.pins_parameters, p.part_elements, p.dtype, Category::parameters, what), 0,
                    p.part_elements);
    heap.copy_over_link(heap.narrow(whole, 0, std::min(p.part_elements, whole.elements)), there, Stream::compute);
    return there;
  }
  Tensor part = heap.make(p.part_elements, p.dtype, Category::parameters, what);
  heap.run("aten::copy_", {reads(whole), writes(part)});
  return part;
}

/// defragment: what is trained, over the host, into one tensor.
void Zero3::flatten() {
  std::int64_t elements = 0;
  for (PartedParameter& p : coordinator_.parameters()) {
    if (!p.gets_gradient) continue;
    elements = checked_add(elements, p.part_elements);
    p.part = {};
  }
  heap().empty_cache();
  flat_ = heap().make(elements, trained_dtype_, Category::parameters, "parts of all parameters");
  heap().run("aten::_to_copy", {writes(flat_)});
  std::int64_t begin = 0;
  for (Group& group : groups_) {
    group.flat = heap().narrow(flat_, begin, group.elements);
    for (const std::size_t place : group.parameters) {
      PartedParameter& p = coordinator_.parameters()[place];
      p.part = heap().narrow(flat_, begin, p.part_elements);
      begin += p.part_elements;
    }
  }
}

/// _create_fp32_partitions, each by way of a copy; and the gradient of zeros that initialize_optimizer_states shows to
/// no optimizer.
void Zero3::make_masters() {
  std::int64_t most = 0;
  Tensor converted;
  for (Group& group : groups_) {
    converted = group.flat;
    if (trained_dtype_ != Dtype::f32) {
      converted = computed("aten::_to_copy", {reads(group.flat)}, group.elements, Dtype::f32, "converted parts");
    }
    group.master.value = heap().make(group.elements, Dtype::f32, Category::parameters, "master of " + group.name);
    heap().run("aten::clone", {reads(converted), writes(group.master.value)});
    most = std::max(most, group.elements);
  }
  converted = {};
  const Tensor zeros = computed("aten::zeros", {}, most, Dtype::f32, "gradient of zeros");
}

void Zero3::begin_forward() {
  coordinator_.begin();
  for (const Submodule& module : modules_) coordinator_.fetch(module, Pass::forward);
}

/// The hook before the module's backward is a node at its output, the one after it a node at its input, which isn't
/// taken for the last one where the module has run again without gradients (ds_grads_remaining).
Tensor Zero3::enter(const Submodule& module, Tensor input) {
  coordinator_.fetch(module, Pass::forward);
  if (module.is_called_by_names) return input;
  int& left = inputs_left_[module.name];
  left = input.wants_gradient ? 1 : 0;
  if (!input.wants_gradient) return input;
  return torch().pass_through(std::move(input), [this, module] {
    if (--inputs_left_[module.name] == 0) coordinator_.release(module, Pass::backward);
  });
}

Tensor Zero3::leave(const Submodule& module, Tensor output) {
  coordinator_.release(module, Pass::forward);
  if (!output.wants_gradient) return output;
  return torch().pass_through(std::move(output), [this, module] { coordinator_.fetch(module, Pass::backward); });
}

Tensor Zero3::leave_model(Tensor output) {
  for (std::size_t left = modules_.size() - 1; left > 0; --left) output = leave(modules_[left - 1], std::move(output));
  return output;
}

/// __add_grad_to_ipg_bucket: what doesn't fit into the bucket waits where it is.
void Zero3::take(int parameter) {
  const Scope scope(heap(), "zero");
  const std::size_t place = coordinator_.place_of(parameter);
  const std::int64_t elements = coordinator_.parameters()[place].elements;
  if (ready_elements_ + elements > bucket_elements_ && ready_elements_ > 0) reduce_bucket();
  Tensor gradient = torch().take_gradient(parameter);
  if (ready_elements_ + elements <= bucket_elements_) {
    const Tensor moved = heap().narrow(bucket_, ready_elements_, elements);
    if (collected_ >= 0) heap().wait(std::exchange(collected_, -1), Stream::compute);
    heap().run("aten::copy_", {reads(gradient), writes(moved)});
    gradient = moved;
  }
  ready_.push_back({place, std::move(gradient)});
  ready_elements_ += elements;
}

/// __avg_scatter_grads: what isn't in the bucket has the type of what is trained.
void Zero3::narrow_large() {
  stream_ = reducing_;
  for (Ready& ready : ready_) {
    Tensor& gradient = ready.gradient;
    if (gradient.dtype == dtype_) continue;
    large_.push_back(gradient);
    gradient = computed("aten::_to_copy", {reads(gradient)}, gradient.elements, dtype_, "large gradient, converted");
  }
  stream_ = Stream::compute;
}

/// reduce_scatter_coalesced: the ranks' parts one after the other, each padded; in place where that is so already.
Tensor Zero3::scattered() {
  const std::vector<PartedParameter>& parameters = coordinator_.parameters();
  const PartedParameter& first = parameters[ready_.front().parameter];
  Tensor flat = ready_.front().gradient;
  std::vector<Tensor> padding;
  if (ready_.size() > 1 || first.part_elements * ranks_ != first.trained->elements) {
    Accesses accesses;
    std::int64_t elements = 0;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      for (const Ready& ready : ready_) {
        const PartedParameter& p = parameters[ready.parameter];
        const std::int64_t own =
            std::clamp<std::int64_t>(p.trained->elements - rank * p.part_elements, 0, p.part_elements);
        elements += p.part_elements;
        if (own < p.part_elements) {
          padding.push_back(heap().make(p.part_elements - own, dtype_, Category::temporaries,
                                        fmt::format("padding of rank {}", rank), reducing_));
        }
      }
    }
    for (const Ready& ready : ready_) accesses.push_back(reads(ready.gradient));
    flat = heap().make(elements, dtype_, Category::communication, "gradients by rank", reducing_);
    accesses.push_back(writes(flat));
    heap().run("aten::cat", accesses, reducing_);
  }
  if (reducing_ != Stream::compute) collected_ = heap().record(reducing_);
  heap().run("aten::div_", {changes(flat)}, reducing_);
  heap().wait(heap().start(program::Collective::reduce_scatter, program::Axis::shard, {changes(flat)}, reducing_,
                           flat.elements / ranks_ * dtype_bytes(dtype_)),
              reducing_);
  return flat;
}

void Zero3::wait_on(Stream waiting) {
  if (reducing_ == Stream::compute) return;
  heap().wait_for_stream(waiting, waiting == reducing_ ? Stream::compute : reducing_);
}

/// partition_grads, without offload.
void Zero3::keep_part(std::size_t parameter, const Tensor& flat) {
  const Tensor& part = gradient_parts_[parameter];
  const double passes = accumulates_ ? 3 : 2;
  heap().run(accumulates_ ? "aten::add_" : "aten::copy_", {reads(flat), accumulates_ ? changes(part) : writes(part)},
             {.bytes = passes * static_cast<double>(2 * part.elements)}, reducing_);
}

/// __reduce_and_partition_ipg_grads, partition_grads
void Zero3::reduce_bucket() {
  if (ready_.empty()) return;
  const Scope scope(heap(), "zero");
  std::ranges::sort(ready_, {}, &Ready::parameter);
  wait_on(reducing_);
  narrow_large();
  {
    const Tensor flat = scattered();
    Tensor on_card;  // as the names of a loop in Python keep it into the next round
    for (const Ready& ready : ready_) {
      offload_.states ? send_to_host(ready.parameter, flat, on_card) : keep_part(ready.parameter, flat);
    }
    on_card = {};
    const bool is_in_bucket = flat.storage.buffer() == bucket_.storage.buffer();
    if (is_in_bucket && reducing_ != Stream::compute) collected_ = heap().record(reducing_);
  }
  // What is no part of the bucket goes back to the pool that it came from.
  if (ready_elements_ > bucket_elements_) wait_on(Stream::compute);
  ready_.clear();
  large_.clear();
  ready_elements_ = 0;
}

void Zero3::finish_backward() {
  reduce_bucket();
  wait_on(Stream::compute);
  collected_ = -1;
  accumulates_ = true;
  coordinator_.release_leftovers();
}

std::vector<Trained*> Zero3::updated() {
  std::vector<Trained*> masters;
  for (Group& group : groups_) masters.push_back(&group.master);
  return masters;
}

std::vector<OptimizerGroup> Zero3::groups() {
  Group& group = groups_[updated_];
  return {{{&group.master}, {group.gradient}}};
}

}  // namespace vramfit::eager
