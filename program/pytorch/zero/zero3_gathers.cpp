// How ZeRO-3's parameters become whole: what a coordinator gathers at once, alone or for good.
#include <algorithm>
#include <utility>

#include "program/pytorch/zero/zero3_coordinator.h"

namespace vramfit::eager {

using Status = PartedParameter::Status;

/// Those of 16 bits first, and bytes last (sort_dtypes).
std::vector<Arrival> Zero3Coordinator::by_type(const std::vector<std::size_t>& parameters) const {
  std::vector<Arrival> arrivals;
  const auto order = [](Dtype dtype) { return dtype == Dtype::u8 ? 2 : dtype == Dtype::f32 ? 1 : 0; };
  for (const int now : {0, 1, 2}) {
    Arrival arrival;
    for (const std::size_t place : parameters) {
      if (order(parameters_[place].dtype) == now) arrival.parameters.push_back(place);
    }
    if (!arrival.parameters.empty()) arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

/// all_gather_coalesced, of those that are parted. On one rank a part is all there is.
void Zero3Coordinator::gather(std::vector<std::size_t> parameters) {
  std::erase_if(parameters, [this](std::size_t p) { return parameters_[p].status != Status::parted; });
  if (parameters.empty()) return;
  std::ranges::sort(parameters);
  const Scope scope(torch_.heap(), "zero");
  const auto made = std::make_shared<Gather>(Gather{.arrivals = by_type(parameters), .number = gathers_++});
  for (const std::size_t place : parameters) {
    PartedParameter& p = parameters_[place];
    p.status = Status::on_its_way;
    p.gather = made;
    available_ += p.elements;
  }
  if (ranks_ == 1 && !offloads_) return;
  wait_on(stream_);  // it may work with what was let go of
  if (ranks_ > 1) {
    for (Arrival& arrival : made->arrivals) start(arrival, parameters.size() == 1);
    return;
  }
  for (const std::size_t place : parameters) parameters_[place].whole = on_card(parameters_[place], stream_);
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

void Zero3Coordinator::wait_for(Gather& gather, Stream stream) {
  if (std::exchange(gather.is_complete, true)) return;
  for (Arrival& arrival : gather.arrivals) wait_for(arrival, stream);
}

void Zero3Coordinator::wait_for(Arrival& arrival, Stream stream) {
  Heap& heap = torch_.heap();
  const Scope scope(heap, "zero");
  if (arrival.token >= 0) {
    heap.wait(arrival.token, stream);
    if (stream == stream_) wait_on(stream_);
  }
  arrival.sent = {};
  for (const std::size_t place : arrival.parameters) {
    PartedParameter& p = parameters_[place];
    if (ranks_ == 1) {
      make_whole(p, offloads_ ? p.whole : p.part);
    } else if (!arrival.flat.storage) {
      make_whole(p, heap.narrow(p.whole, 0, p.elements));
    } else {
      Tensor whole =
          heap.make(p.elements, p.dtype, Category::unsharded_parameters, "gathered " + p.trained->name, stream);
      heap.run("aten::cat", {reads(arrival.flat), writes(whole)}, {.bytes = 2 * bytes_in(whole)}, stream);
      make_whole(p, std::move(whole));
    }
  }
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
  make_whole(p, torch_.heap().narrow(whole, 0, p.elements));
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
  for (PartedParameter* p : parted) p->is_of_last_step = true;
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
    make_whole(*parted[i], ranks_ == 1 ? parts[i] : torch_.heap().narrow(wholes[i], 0, parted[i]->elements));
  }
}

void Zero3Coordinator::forget_graph() {
  for (PartedParameter& p : parameters_) {
    if (p.of_graph.storage) make_whole(p, std::exchange(p.of_graph, {}));
  }
}

void Zero3Coordinator::gather_for_good() {
  std::vector<std::size_t> parted;
  for (std::size_t place = 0; place < parameters_.size(); ++place) {
    if (parameters_[place].is_persistent && parameters_[place].status == Status::parted) parted.push_back(place);
  }
  gather(parted);
  for (const std::size_t place : parted) {
    if (const std::shared_ptr<Gather> gather = std::exchange(parameters_[place].gather, nullptr))
      wait_for(*gather, stream_);
  }
  wait_on(Stream::compute);
}

}  // namespace vramfit::eager
