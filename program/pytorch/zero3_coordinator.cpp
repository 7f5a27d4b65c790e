#include "program/pytorch/zero3_coordinator.h"

#include <algorithm>
#include <stdexcept>

namespace vramfit::eager {

namespace {

using Status = PartedParameter::Status;

/// Before any place in the order.
constexpr std::int64_t kNever = -1;

}  // namespace

Zero3Coordinator::Zero3Coordinator(Torch& torch, std::int64_t ranks, Zero3Sizes sizes, Stream stream, bool offloads)
    : torch_(torch), ranks_(ranks), sizes_(sizes), stream_(stream), offloads_(offloads) {}

void Zero3Coordinator::wait_on(Stream stream) {
  if (stream_ == Stream::compute) return;
  torch_.heap().wait_for_stream(stream, stream == stream_ ? Stream::compute : stream_);
}

void Zero3Coordinator::add(const Trained& trained, Dtype dtype, bool gets_gradient) {
  places_[trained.parameter] = parameters_.size();
  parameters_.push_back({.trained = &trained,
                         .dtype = dtype,
                         .gets_gradient = gets_gradient,
                         .part_elements = ceil_div(trained.elements, ranks_),
                         .is_persistent = trained.elements <= sizes_.param_persistence_threshold,
                         .part = {},
                         .whole = {},
                         .gather = nullptr,
                         .used_by = {},
                         .fetched_for_step = kNever});
}

void Zero3Coordinator::set_model_order(const std::vector<Trained>& all) {
  for (const Trained& p : all) in_model_order_.push_back(place_of(p.parameter));
}

std::vector<std::size_t> Zero3Coordinator::own(const Submodule& module) const {
  std::vector<std::size_t> found;
  for (const int parameter : module.parameters) found.push_back(places_.at(parameter));
  if (const auto others = reached_.find(module.name); others != reached_.end()) {
    found.insert(found.end(), others->second.begin(), others->second.end());
  }
  return found;
}

/// assert_ints_same_as_other_ranks
void Zero3Coordinator::compare_over_ranks(std::int64_t numbers) {
  Heap& heap = torch_.heap();
  const Scope scope(heap, "order of modules");
  for (const std::int64_t elements : {std::int64_t{1}, numbers}) {
    if (elements == 0) continue;
    const Tensor list = heap.make(elements, Dtype::i64, Category::temporaries, "numbers to compare");
    heap.run("aten::_to_copy", {writes(list)}, {.bytes = 0});
    heap.run("c10d::broadcast", {changes(list)});
  }
}

void Zero3Coordinator::end_recording() {
  if (trace_ != Trace::recording) return;
  std::int64_t uses = 0;
  for (const Submodule& module : modules_) {
    order_.push_back(own(module));
    uses += static_cast<std::int64_t>(order_.back().size());
  }
  compare_over_ranks(static_cast<std::int64_t>(order_.size()));
  compare_over_ranks(uses);  // which parameters
  compare_over_ranks(uses);  // and where in the order
  trace_ = Trace::complete;
}

/// reset_step: the first forward and backward are recorded, and all others follow that record.
void Zero3Coordinator::begin() {
  for (PartedParameter& p : parameters_) {
    if (p.gather == nullptr) continue;
    wait_for(*p.gather);
    p.gather = nullptr;
    release_one(p);
  }
  end_recording();
  if (trace_ == Trace::none) {
    compare_over_ranks(0);
    trace_ = Trace::recording;
  }
  queue_.clear();
  if (trace_ == Trace::complete) {
    for (std::size_t step = 0; step < order_.size(); ++step) {
      std::vector<std::size_t> parameters = order_[step];
      std::ranges::sort(parameters);
      for (const std::size_t p : parameters) queue_.push_back({p, static_cast<std::int64_t>(step)});
    }
  }
  for (PartedParameter& p : parameters_) p.fetched_for_step = kNever;
  step_ = 0;
  available_ = 0;
}

void Zero3Coordinator::fetch(const Submodule& module, Pass pass) {
  const std::vector<std::size_t> needed = own(module);
  if (trace_ == Trace::recording) modules_.push_back(module);
  if (pass == Pass::backward &&
      std::ranges::none_of(in_backward_, [&](const Submodule& m) { return m.name == module.name; })) {
    in_backward_.push_back(module);
  }
  gather(needed);
  for (const std::size_t place : needed) {
    PartedParameter& p = parameters_[place];
    p.used_by.insert(module.name);
    if (pass == Pass::forward && torch_.is_in_backward() && !in_backward_.empty() && !p.gets_gradient) {
      p.used_by.insert(in_backward_.back().name);
      recomputed_[in_backward_.back().name].insert(place);
    }
    if (p.gather == nullptr) continue;
    const std::shared_ptr<Gather> gather = std::exchange(p.gather, nullptr);
    wait_for(*gather);
  }
  wait_on(Stream::compute);
  if (trace_ == Trace::complete) {
    take_from_queue(needed);
    prefetch();
  }
  ++step_;
}

/// What this module needs and nothing ahead of it has gathered.
void Zero3Coordinator::take_from_queue(const std::vector<std::size_t>& needed) {
  std::set<std::size_t> unseen, taken;
  for (const std::size_t place : needed) {
    if (parameters_[place].fetched_for_step < step_) unseen.insert(place);
  }
  while (!queue_.empty() && taken.size() < unseen.size()) {
    parameters_[queue_.front().parameter].fetched_for_step = queue_.front().step;
    taken.insert(queue_.front().parameter);
    queue_.pop_front();
  }
  if (taken != unseen) throw std::logic_error("ZeRO-3: modules run in another order than before");
}

void Zero3Coordinator::prefetch() {
  const std::int64_t most = std::min(sizes_.max_live_parameters - available_, sizes_.prefetch_bucket_size);
  std::set<std::size_t> chosen;
  std::int64_t elements = 0;
  while (!queue_.empty() && elements < most) {
    const Use use = queue_.front();
    queue_.pop_front();
    PartedParameter& p = parameters_[use.parameter];
    p.fetched_for_step = std::max(p.fetched_for_step, use.step);
    if (p.status != Status::parted || !chosen.insert(use.parameter).second) continue;
    elements += p.trained->elements;
  }
  gather({chosen.begin(), chosen.end()});
}

/// all_gather_coalesced, of those that are parted. On one rank a part is all there is.
void Zero3Coordinator::gather(std::vector<std::size_t> parameters) {
  std::erase_if(parameters, [this](std::size_t p) { return parameters_[p].status != Status::parted; });
  if (parameters.empty()) return;
  std::ranges::sort(parameters);
  const Scope scope(torch_.heap(), "zero");
  const auto made = std::make_shared<Gather>(Gather{.arrivals = by_type(parameters)});
  for (const std::size_t place : parameters) {
    PartedParameter& p = parameters_[place];
    p.status = Status::on_its_way;
    p.gather = made;
    available_ += p.trained->elements;
  }
  if (ranks_ == 1 && !offloads_) return;
  wait_on(stream_);  // it may work with what was let go of
  if (ranks_ > 1) {
    for (Arrival& arrival : made->arrivals) start(arrival, parameters.size() == 1);
    return;
  }
  for (const std::size_t place : parameters) parameters_[place].whole = on_card(parameters_[place], stream_);
}

/// Those of 16 bits first (sort_dtypes).
std::vector<Arrival> Zero3Coordinator::by_type(const std::vector<std::size_t>& parameters) const {
  std::vector<Arrival> arrivals;
  for (const bool is_wide : {false, true}) {
    Arrival arrival;
    for (const std::size_t place : parameters) {
      if ((parameters_[place].dtype == Dtype::f32) == is_wide) arrival.parameters.push_back(place);
    }
    if (!arrival.parameters.empty()) arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

void Zero3Coordinator::start(Arrival& arrival, bool is_alone) {
  Heap& heap = torch_.heap();
  PartedParameter& first = parameters_[arrival.parameters.front()];
  const Dtype dtype = first.dtype;
  std::int64_t part_elements = 0;
  for (const std::size_t place : arrival.parameters) part_elements += parameters_[place].part_elements;
  const std::int64_t elements = checked_mul(part_elements, ranks_);
  const std::string what = is_alone ? "gathered " + first.trained->name : "gathered parameters";
  Tensor& target = is_alone ? first.whole : arrival.flat;
  target =
      heap.make(elements, dtype, is_alone ? Category::unsharded_parameters : Category::communication, what, stream_);
  std::vector<Tensor> parts;
  for (const std::size_t place : arrival.parameters) {
    const PartedParameter& p = parameters_[place];
    parts.push_back(offloads_ ? on_card(p, stream_) : p.part);
  }
  Accesses accesses;
  if (is_alone) {
    // A part in the flat tensor of all is read by other gathers, too: the collective has it to itself no more than
    // they.
    accesses = {writes(target)};
    if (offloads_) accesses.push_back(reads(arrival.sent = parts.front()));
  } else {
    for (const Tensor& part : parts) accesses.push_back(reads(part));
    accesses.push_back({target.storage.buffer(), program::How::write_part});
    const auto sent = static_cast<double>((part_elements * dtype_bytes(dtype)).n);
    heap.run("aten::cat", accesses, {.bytes = 2 * sent}, stream_);
    parts.clear();
    accesses = {changes(target)};
  }
  arrival.token = heap.start(program::Collective::all_gather, program::Axis::shard, accesses, stream_,
                             part_elements * dtype_bytes(dtype));
}

void Zero3Coordinator::make_whole(PartedParameter& p, Tensor whole) {
  p.whole = std::move(whole);
  p.status = Status::whole;
  torch_.set_parameter(p.trained->parameter, p.whole, p.gets_gradient);
}

void Zero3Coordinator::wait_for(Gather& gather) {
  if (std::exchange(gather.is_complete, true)) return;
  for (Arrival& arrival : gather.arrivals) wait_for(arrival);
}

void Zero3Coordinator::wait_for(Arrival& arrival) {
  Heap& heap = torch_.heap();
  const Scope scope(heap, "zero");
  if (arrival.token >= 0) {
    heap.wait(arrival.token, stream_);
    wait_on(stream_);
  }
  arrival.sent = {};
  for (const std::size_t place : arrival.parameters) {
    PartedParameter& p = parameters_[place];
    if (ranks_ == 1) {
      make_whole(p, offloads_ ? p.whole : p.part);
    } else if (!arrival.flat.storage) {
      make_whole(p, heap.narrow(p.whole, 0, p.trained->elements));
    } else {
      Tensor whole = heap.make(p.trained->elements, p.dtype, Category::unsharded_parameters,
                               "gathered " + p.trained->name, stream_);
      heap.run("aten::cat", {reads(arrival.flat), writes(whole)}, {.bytes = 2 * bytes_in(whole)}, stream_);
      make_whole(p, std::move(whole));
    }
  }
}

void Zero3Coordinator::let_go(PartedParameter& p) {
  p.whole = {};
  p.status = Status::parted;
}

/// __release_param
void Zero3Coordinator::release_one(PartedParameter& p) {
  if (p.status != Status::whole || !p.used_by.empty()) return;
  let_go(p);
  available_ -= p.trained->elements;
}

/// __params_to_release: neither what stays, nor what was seen ahead, nor what comes again soon.
const std::set<std::size_t>& Zero3Coordinator::to_release(const Submodule& module) {
  const auto [known, is_new] = releases_.try_emplace({module.name, step_});
  std::set<std::size_t>& released = known->second;
  if (!is_new) return released;
  for (const std::size_t place : own(module)) {
    const PartedParameter& p = parameters_[place];
    if (!p.is_persistent && p.fetched_for_step <= step_) released.insert(place);
  }
  std::int64_t seen = 0;
  for (auto step = static_cast<std::size_t>(step_); step < order_.size() && seen < sizes_.max_reuse_distance; ++step) {
    for (const std::size_t place : order_[step]) {
      released.erase(place);
      seen += parameters_[place].trained->elements;
    }
  }
  return released;
}

void Zero3Coordinator::release(const Submodule& module, Pass pass) {
  std::vector<std::size_t> used = own(module);
  std::set<std::size_t> released(used.begin(), used.end());
  if (trace_ == Trace::complete) released = to_release(module);
  if (pass == Pass::backward) {
    std::erase_if(in_backward_, [&](const Submodule& m) { return m.name == module.name; });
    for (const std::size_t place : take_recomputed(module)) {
      used.push_back(place);
      if (!parameters_[place].is_persistent) released.insert(place);
    }
  }
  for (const std::size_t place : used) {
    PartedParameter& p = parameters_[place];
    p.used_by.erase(module.name);
    if (released.contains(place)) release_one(p);
  }
}

std::set<std::size_t> Zero3Coordinator::take_recomputed(const Submodule& module) {
  const auto found = recomputed_.extract(module.name);
  return found.empty() ? std::set<std::size_t>{} : found.mapped();
}

void Zero3Coordinator::release_leftovers() {
  for (; !in_backward_.empty(); in_backward_.pop_back()) {
    const Submodule& module = in_backward_.back();
    std::vector<std::size_t> used = own(module);
    const std::set<std::size_t> recomputed = take_recomputed(module);
    used.insert(used.end(), recomputed.begin(), recomputed.end());
    for (const std::size_t place : used) {
      PartedParameter& p = parameters_[place];
      p.used_by.erase(module.name);
      if (!p.is_persistent) release_one(p);
    }
  }
}

void Zero3Coordinator::release_all() {
  for (const std::size_t place : in_model_order_) {
    PartedParameter& p = parameters_[place];
    if (p.gather != nullptr) {
      const std::shared_ptr<Gather> gather = std::exchange(p.gather, nullptr);
      wait_for(*gather);
    }
    p.used_by.clear();
    release_one(p);
  }
}

void Zero3Coordinator::reach(const Submodule& module, int parameter) {
  const std::size_t place = places_.at(parameter);
  if (parameters_[place].status != Status::parted) return;
  reached_[module.name].insert(place);
  gather_alone(parameters_[place]);
}

/// ds_tensor.to(device): what offload_param keeps in host memory, for as long as it is needed.
Tensor Zero3Coordinator::on_card(const PartedParameter& p, Stream stream) {
  Heap& heap = torch_.heap();
  Tensor copy = heap.make(p.part_elements, p.dtype, Category::communication, "part of " + p.trained->name, stream);
  heap.copy_over_link(p.part, copy, stream);
  return copy;
}

/// _allgather_params_sequential
void Zero3Coordinator::gather_alone(PartedParameter& p) {
  const Scope scope(torch_.heap(), "zero");
  const Tensor whole = make_for_whole(p);
  gather_into(whole, offloads_ ? on_card(p, Stream::compute) : p.part);
  make_whole(p, torch_.heap().narrow(whole, 0, p.trained->elements));
}

Tensor Zero3Coordinator::make_for_whole(const PartedParameter& p) {
  return torch_.heap().make(checked_mul(p.part_elements, ranks_), p.dtype, Category::unsharded_parameters,
                            "whole " + p.trained->name);
}

void Zero3Coordinator::gather_into(const Tensor& whole, const Tensor& part) {
  Heap& heap = torch_.heap();
  heap.wait(heap.start(program::Collective::all_gather, program::Axis::shard, {writes(whole), reads(part)},
                       Stream::compute, part.elements * dtype_bytes(part.dtype)),
            Stream::compute);
}

/// _allgather_params_coalesced: each in a tensor of its own. One rank sees them in its parts, unless there is only one,
/// and in the order in which they were parted (_no_gather_coalesced).
void Zero3Coordinator::gather_persistent() {
  std::vector<PartedParameter*> parted;
  for (const std::size_t place : in_model_order_) {
    PartedParameter& p = parameters_[place];
    if (p.is_persistent && p.status == Status::parted) parted.push_back(&p);
  }
  if (parted.size() == 1) return gather_alone(*parted.front());
  if (ranks_ == 1) std::ranges::sort(parted);
  const Scope scope(torch_.heap(), "zero");
  std::vector<Tensor> parts, wholes;
  for (const PartedParameter* p : parted) parts.push_back(offloads_ ? on_card(*p, Stream::compute) : p->part);
  if (ranks_ > 1) {
    for (const PartedParameter* p : parted) wholes.push_back(make_for_whole(*p));
    for (std::size_t i = 0; i < parted.size(); ++i) gather_into(wholes[i], parts[i]);
  }
  for (std::size_t i = 0; i < parted.size(); ++i) {
    make_whole(*parted[i], ranks_ == 1 ? parts[i] : torch_.heap().narrow(wholes[i], 0, parted[i]->trained->elements));
  }
}

}  // namespace vramfit::eager
