#include "program/pytorch/wrappers/fsdp1.h"

#include <algorithm>
#include <utility>

#include "base/numbers/index.h"
#include "program/stages/offload.h"

namespace vramfit::eager {

namespace {

/// _flat_param.py: _get_aligned_numel
constexpr std::int64_t kAlignmentBytes = 16;

/// What fills `elements` up to a multiple.
std::int64_t filling(std::int64_t elements, std::int64_t multiple) {
  return checked_mul(ceil_div(elements, multiple), multiple) - elements;
}

}  // namespace

FlatLayout flat_layout(const std::vector<std::int64_t>& parameters, Dtype gathered, std::int64_t ranks) {
  FlatLayout layout;
  const auto pad_to = [&](std::int64_t multiple) {
    const std::int64_t padding = filling(layout.elements, multiple);
    if (padding > 0) layout.padding.push_back(padding);
    layout.elements = checked_add(layout.elements, padding);
  };
  for (const std::int64_t elements : parameters) {
    pad_to(kAlignmentBytes / dtype_bytes(gathered).n);
    layout.begins.push_back(layout.elements);
    layout.elements = checked_add(layout.elements, elements);
  }
  pad_to(ranks);
  return layout;
}

Fsdp1::Fsdp1(Torch& torch, const Graph& graph, const Job& job)
    : torch_(torch),
      graph_(graph),
      ranks_(job.mesh.shard),
      replicas_(job.mesh.replicate),
      offloads_(offload_of(job).parameters),
      compute_(job.precision.compute),
      reduce_(job.precision.reduce),
      prefetch_(job.backward_prefetch),
      gathers_ahead_in_forward_(job.forward_prefetch > 0),
      has_narrow_adapters_(job.method == Method::qlora && has_trl(job)),
      held_(held_parameters(graph, job)) {}

/// Codes of 4 bits lie in numbers of the compute dtype (bnb_4bit_quant_storage), as FSDP joins tensors of one dtype.
std::int64_t Fsdp1::flat_elements(int parameter) const {
  const std::int64_t count = element_count(graph_.parameters[at(parameter)]);
  if (held_[at(parameter)].quantization == nullptr) return count;
  return (count + 1) / (2 * dtype_bytes(compute_).n);
}

int Fsdp1::add_unit(FlatUnitParts parts) {
  const HeldParameter& held = held_[at(parts.parameters.front())];
  FlatUnit unit{.parts = std::move(parts),
                .parameters = {},
                .layout = {},
                .is_trained = held.trainable,
                .storage = held.quantization != nullptr ? compute_ : held.dtype,
                .loaded = {},
                .shard = {},
                .whole = {},
                .gradient = {},
                .on_host = {},
                .whole_gradient = {}};
  unit.loaded = has_narrow_adapters_ && unit.is_trained ? Dtype::bf16 : unit.storage;
  const std::vector<int>& parameters = unit.parts.parameters;
  std::vector<std::int64_t> sizes;
  for (const int index : parameters) sizes.push_back(flat_elements(index));
  unit.layout = flat_layout(sizes, compute_, ranks_);
  const std::int64_t own = shard_elements(unit);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t begin = unit.layout.begins[i], elements = sizes[i];
    unit.parameters.push_back(
        {.parameter = parameters[i],
         .begin = begin,
         .elements = elements,
         .trained = {.parameter = parameters[i],
                     .name = graph_.parameters[at(parameters[i])].name,
                     .elements = std::clamp<std::int64_t>(own - begin, 0, elements),  // rank 0 has the first part
                     .value = {},
                     .exp_avg = {},
                     .exp_avg_sq = {},
                     .step = {}}});
  }
  units_.push_back(std::move(unit));
  return static_cast<int>(units_.size()) - 1;
}

/// _init_utils.py: _init_param_handle_from_module. What is broadcast is one tensor of up to 250 MiB, which is gone
/// before there are two of all parameters.
void Fsdp1::load(int number) {
  FlatUnit& unit = units_[at(number)];
  const Scope scope(heap(), unit.parts.name);
  std::vector<Tensor> parameters;
  Accesses accesses;
  for (FlatParameter& p : unit.parameters) {
    if (const Quantization* const format = held_[at(p.parameter)].quantization; format != nullptr) {
      const std::int64_t count = element_count(graph_.parameters[at(p.parameter)]);
      p.scales = torch_.make_quantization_state(p.parameter, count, *format, p.trained.name);
    }
    parameters.push_back(
        heap().make(p.elements, unit.loaded, Category::unsharded_parameters, "whole " + p.trained.name));
    heap().run("aten::_to_copy", {writes(parameters.back())}, {.bytes = 0});
    accesses.push_back(reads(parameters.back()));
  }
  Tensor flat = heap().make(unit.layout.elements, unit.loaded, Category::unsharded_parameters, "flat parameter");
  accesses.push_back(writes(flat));
  heap().run("aten::cat", accesses);
  unit.shard = heap().make(shard_elements(unit), unit.loaded, Category::parameters, "shard of the flat parameter");
  heap().run("aten::clone", {reads(flat), writes(unit.shard)});
  flat = {};
  if (offloads_) {
    const Tensor on_card = std::exchange(unit.shard, heap().make_pinned(shard_elements(unit), unit.loaded,
                                                                        Category::parameters, "shard in host memory"));
    heap().wait_for_stream(Stream::compute, Stream::host);
    heap().copy_over_link(on_card, unit.shard, Stream::compute);
  }
  for (FlatParameter& p : unit.parameters) {
    if (p.trained.elements > 0) p.trained.value = heap().narrow(unit.shard, p.begin, p.trained.elements);
  }
}

/// _lazy_init (_flat_param.py: init_flat_param_attributes): each tensor that will hold a unit is made once to be freed.
void Fsdp1::initialize() {
  is_initialized_ = true;
  for (const FlatUnit& unit : units_) {
    const Scope scope(heap(), unit.parts.name);
    const auto make_once = [&](std::int64_t elements, Dtype dtype, const char* what) {
      const Tensor made = heap().make(elements, dtype, Category::communication, what);
    };
    if (is_cast(unit)) make_once(shard_elements(unit), compute_, "shard, cast, made once");
    make_once(unit.layout.elements, compute_, "gathered parameters, made once");
    if (is_cast(unit))
      make_once(unit.layout.elements, unit.storage, "gathered parameters in full precision, made once");
  }
}

/// The root's: gathers wait for the optimizer. Gradients that the optimizer's zero_grad() has let go of were still held
/// by the flat parameter (_reset_flat_param_grad_info_if_needed).
void Fsdp1::begin_forward() {
  if (!is_initialized_) initialize();
  for (const Stream stream : {Stream::all_gather, Stream::to_device}) heap().wait_for_stream(stream, Stream::compute);
  for (FlatUnit& unit : units_) unit.awaits_forward = true;
  if (!std::exchange(are_zeroed_, false)) return;
  for (FlatUnit& unit : units_) unit.gradient = unit.on_host = {};
}

/// pre_unshard: the shard is cast on a stream of its own, into a tensor that lives until it is gathered. One in host
/// memory is copied to the card before.
Tensor Fsdp1::sent(const FlatUnit& unit) {
  const auto make = [&](Dtype dtype, const char* what) {
    return heap().make(shard_elements(unit), dtype, Category::communication, what, Stream::to_device);
  };
  if (!is_cast(unit) && !offloads_) return unit.shard;
  Tensor cast;
  if (is_cast(unit)) cast = make(compute_, "shard, cast");
  Tensor on_card = unit.shard;
  if (offloads_) {
    on_card = make(unit.storage, "shard on the card");
    heap().wait_for_stream(Stream::to_device, Stream::host);
    heap().copy_over_link(unit.shard, on_card, Stream::to_device);
  }
  if (is_cast(unit)) heap().run("aten::copy_", {reads(on_card), writes(cast)}, Stream::to_device);
  heap().wait_for_stream(Stream::all_gather, Stream::to_device);
  return is_cast(unit) ? cast : on_card;
}

/// _unshard, which sees that there is nothing to gather once a shard has come from the host.
void Fsdp1::gather(FlatUnit& unit) {
  unit.is_seen_whole = true;
  const bool is_whole{unit.whole.storage};
  if (is_whole && !offloads_) return;
  const Scope scope(heap(), unit.parts.name);
  const std::int64_t own = shard_elements(unit);
  const Tensor sent = this->sent(unit);
  if (is_whole) return;
  unit.whole = heap().make(unit.layout.elements, compute_, Category::unsharded_parameters, "gathered parameters",
                           Stream::all_gather);
  const int token = heap().start(program::Collective::all_gather, program::Axis::shard,
                                 {writes(unit.whole), reads(sent)}, Stream::all_gather, own * dtype_bytes(compute_));
  heap().wait(token, Stream::all_gather);
  if (is_cast(unit) || offloads_) {
    heap().wait_for_stream(Stream::to_device, Stream::all_gather);  // before its pool has it again
  }
  for (const FlatParameter& p : unit.parameters) {
    torch_.set_parameter(p.parameter, heap().narrow(unit.whole, p.begin, p.elements), unit.is_trained);
  }
}

/// Before its pool has it again, what computes with it is done (record_stream).
void Fsdp1::release(FlatUnit& unit) {
  if (!unit.whole.storage) return;
  heap().wait_for_stream(Stream::all_gather, Stream::compute);
  unit.whole = {};
}

/// Views of the flat parameter (_use_unsharded_views), made on the stream that gathers, where their backward runs, too.
void Fsdp1::see_parameters(int number) {
  FlatUnit& unit = units_[at(number)];
  if (!unit.is_trained) return;
  const Scope scope(heap(), unit.parts.name);
  std::vector<int> parameters;
  for (const FlatParameter& p : unit.parameters) parameters.push_back(p.parameter);
  torch_.see_as_parts(
      parameters,
      [this, number](const std::vector<Tensor>& gradients) { return joined(units_[at(number)], gradients); },
      [this, number](Tensor gradient) { post_backward(units_[at(number)], std::move(gradient)); }, Stream::all_gather);
}

/// A checkpoint that computes forward again leaves the unit alone whose backward has asked for that. What is frozen is
/// let go of when the gradients of the unit's input are there, if it wants one
/// (_register_post_backward_reshard_only_hook).
void Fsdp1::pre_forward(int number, const Tensor& input) {
  FlatUnit& unit = units_[at(number)];
  if (unit.awaits_gradient) return;
  if (!unit.is_gathered_ahead) {
    gather(unit);
    see_parameters(number);
  }
  heap().wait_for_stream(Stream::compute, Stream::all_gather);
  prefetch_behind(number);
  if (unit.is_trained || !input.made_by) return;
  input.made_by->before.emplace_back([this, number] { end_backward(units_[at(number)]); });
}

/// _exec_order_utils.py: record_post_forward, which takes the first unit for one that hasn't run.
void Fsdp1::post_forward(int number, const Tensor& output) {
  FlatUnit& unit = units_[at(number)];
  if (unit.awaits_gradient) return;
  if (unit.forward_index <= 0) unit.forward_index = static_cast<int>(forward_order_.size());
  forward_order_.push_back(number);
  unit.is_gathered_ahead = false;
  if (unit.parts.reshards_after_forward) reshard(unit, !unit.parts.is_root);
  if (!output.made_by) return;
  unit.needs_gather = true;
  output.made_by->before.emplace_back([this, number] { pre_backward(number); });
}

void Fsdp1::pre_backward(int number) {
  FlatUnit& unit = units_[at(number)];
  unit.awaits_gradient = true;
  if (std::exchange(unit.needs_gather, false)) {
    if (!unit.is_gathered_ahead) gather(unit);
    heap().wait_for_stream(Stream::compute, Stream::all_gather);
  }
  if (prefetch_ == BackwardPrefetch::pre) prefetch_before(unit);
}

/// Gathers the unit that ran before this one in forward.
void Fsdp1::prefetch_before(const FlatUnit& unit) {
  const int before = unit.forward_index - 1;
  if (before < 0) return;
  FlatUnit& next = units_[at(forward_order_[at(before)])];
  if (!next.needs_gather || next.is_gathered_ahead) return;
  gather_ahead(next);
}

/// The order is that of the first forward, which therefore knows of none behind (record_pre_forward).
void Fsdp1::prefetch_behind(int number) {
  FlatUnit& unit = units_[at(number)];
  unit.awaits_forward = false;
  if (!has_run_ && unit.place < 0) {
    unit.place = static_cast<int>(first_order_.size());
    first_order_.push_back(number);
  }
  const std::size_t behind = at(unit.place) + 1;
  if (!gathers_ahead_in_forward_ || behind >= first_order_.size()) return;
  FlatUnit& next = units_[at(first_order_[behind])];
  if (!next.awaits_forward || next.is_gathered_ahead) return;
  gather_ahead(next);
  see_parameters(first_order_[behind]);
}

void Fsdp1::gather_ahead(FlatUnit& unit) {
  gather(unit);
  unit.is_gathered_ahead = true;
}

void Fsdp1::reshard(FlatUnit& unit, bool frees) {
  if (frees) release(unit);
  unit.is_gathered_ahead = unit.is_seen_whole = false;
  unit.as_loaded = {};  // parameters become views of the shard again (_use_sharded_views)
}

/// _post_backward_reshard
void Fsdp1::end_backward(FlatUnit& unit) {
  unit.awaits_gradient = false;
  reshard(unit, frees_in_backward(unit));
  if (prefetch_ == BackwardPrefetch::post) prefetch_before(unit);
}

/// The backward of split_with_sizes, whose padding has gradients of zeros.
Tensor Fsdp1::joined(const FlatUnit& unit, const std::vector<Tensor>& gradients) {
  heap().wait_for_stream(Stream::all_gather, Stream::compute);
  std::vector<Tensor> padding;
  for (const std::int64_t elements : unit.layout.padding) {
    padding.push_back(heap().make(elements, compute_, Category::temporaries, "padding", Stream::all_gather));
  }
  Tensor flat = heap().make(unit.layout.elements, compute_, Category::gradients, "flat gradient", Stream::all_gather);
  Accesses accesses{writes(flat)};
  for (const Tensor& gradient : gradients) accesses.push_back(reads(gradient));
  heap().run("aten::cat", accesses, Stream::all_gather);
  heap().wait_for_stream(Stream::compute, Stream::all_gather);  // before its pool has the gradients again
  return flat;
}

/// The flat gradient of a micro-batch that reduces nothing is kept, and later ones are added to it. Each is held until
/// the hook behind it returns.
void Fsdp1::post_backward(FlatUnit& unit, Tensor gradient) {
  const Scope scope(heap(), unit.parts.name);
  const bool is_first = !unit.whole_gradient.storage;
  if (is_first) {
    unit.whole_gradient = std::move(gradient);
  } else {
    heap().run("aten::add_", {reads(gradient), changes(unit.whole_gradient)}, Stream::all_gather);
  }
  end_backward(unit);
  if (syncs_gradients_) {
    reduce(unit, std::exchange(unit.whole_gradient, {}));
  } else if (is_first) {
    make_gradient_views(unit);
  }
}

/// _use_unsharded_grad_views: what a parameter is given as its gradient has to be like itself, a part of the shard,
/// until it is made a view of the flat gradient.
void Fsdp1::make_gradient_views(const FlatUnit& unit) {
  for (const FlatParameter& p : unit.parameters) {
    const bool is_like_view =
        !is_cast(unit) && p.trained.elements == p.elements && graph_.parameters[at(p.parameter)].shape.size() == 1;
    if (is_like_view) continue;
    const Tensor like = heap().make(p.trained.elements, unit.storage, Category::temporaries,
                                    "gradient like the part of " + p.trained.name, Stream::all_gather);
  }
}

/// _reduce_grad: over the shards of a node, and then on a stream of its own over nodes.
void Fsdp1::reduce(FlatUnit& unit, Tensor gradient) {
  const std::int64_t own = shard_elements(unit);
  for (const Stream before : {Stream::compute, Stream::all_gather}) {
    heap().wait_for_stream(Stream::reduce_scatter, before);
  }
  const bool is_converted = reduce_ != unit.storage, is_hybrid = replicas_ > 1;
  const Bytes bytes = own * dtype_bytes(reduce_);
  Tensor reduced = heap().make(own, reduce_, is_converted ? Category::communication : Category::gradients,
                               is_converted ? "reduced gradient" : "gradient of the shard", Stream::reduce_scatter);
  const int token = heap().start(program::Collective::reduce_scatter, program::Axis::shard,
                                 {reads(gradient), writes(reduced)}, Stream::reduce_scatter, bytes);
  heap().wait(token, Stream::reduce_scatter);
  const Stream after = is_hybrid ? Stream::to_host : Stream::reduce_scatter;
  if (is_hybrid) {
    heap().wait_for_stream(after, Stream::reduce_scatter);
    heap().wait(
        heap().start(program::Collective::all_reduce, program::Axis::replicate, {changes(reduced)}, after, bytes),
        after);
  }
  if (is_converted) {
    Tensor converted = heap().make(own, unit.storage, Category::gradients, "gradient of the shard", after);
    heap().run("aten::_to_copy", {reads(reduced), writes(converted)}, after);
    if (is_hybrid) heap().wait_for_stream(Stream::reduce_scatter, after);  // before its pool has it again
    reduced = std::move(converted);
  }
  heap().wait_for_stream(Stream::all_gather, Stream::reduce_scatter);  // before its pool has the flat gradient again
  unit.gradient = std::move(reduced);
  if (offloads_) move_to_host(unit);
}

/// _offload_grad: what is on the card stays there until backward ends.
void Fsdp1::move_to_host(FlatUnit& unit) {
  unit.on_host =
      heap().make_pinned(unit.gradient.elements, unit.storage, Category::gradients, "gradient in host memory");
  heap().copy_over_link(unit.gradient, unit.on_host, replicas_ > 1 ? Stream::to_host : Stream::reduce_scatter);
}

/// _post_backward_final_callback. What is frozen and stands behind inputs that want no gradient is let go of here.
void Fsdp1::finish_backward() {
  heap().wait_for_stream(Stream::compute, Stream::reduce_scatter);
  if (replicas_ > 1) heap().wait_for_stream(Stream::compute, Stream::to_host);
  if (offloads_) heap().wait_for_stream(Stream::host, Stream::compute);
  for (FlatUnit& unit : units_) {
    if (offloads_) unit.gradient = {};
    if (unit.is_seen_whole) reshard(unit, frees_in_backward(unit));
    unit.needs_gather = unit.is_gathered_ahead = unit.awaits_gradient = false;
    unit.forward_index = -1;
  }
  forward_order_.clear();
  has_run_ = true;
}

void Fsdp1::zero_gradients() { are_zeroed_ = true; }

}  // namespace vramfit::eager
