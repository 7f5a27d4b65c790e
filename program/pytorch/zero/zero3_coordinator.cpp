#include "program/pytorch/zero/zero3_coordinator.h"

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

void Zero3Coordinator::add(const Trained& trained, std::int64_t elements, Dtype dtype, bool gets_gradient) {
  places_[trained.parameter] = parameters_.size();
  parameters_.push_back({.trained = &trained,
                         .elements = elements,
                         .dtype = dtype,
                         .gets_gradient = gets_gradient,
                         .part_elements = ceil_div(elements, ranks_),
                         .is_persistent = elements <= sizes_.param_persistence_threshold,
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
  std::int64_t uses = 0, elements = 0;
  steps_of_.assign(parameters_.size(), {});
  for (const Submodule& module : modules_) {
    before_.push_back(elements);
    for (const std::size_t place : order_.emplace_back(own(module))) {
      steps_of_[place].push_back(static_cast<std::int64_t>(order_.size()) - 1);
      elements += parameters_[place].elements;
    }
    uses += static_cast<std::int64_t>(order_.back().size());
  }
  compare_over_ranks(static_cast<std::int64_t>(order_.size()));
  compare_over_ranks(uses);  // which parameters
  compare_over_ranks(uses);  // and where in the order
  trace_ = Trace::complete;
}

/// _clean_inflight_param_registry. The collective that gathered one parameter alone has its result until all of them
/// are forgotten.
void Zero3Coordinator::clear_gathers() {
  std::vector<PartedParameter*> on_their_way;
  for (PartedParameter& p : parameters_) {
    if (p.gather != nullptr) on_their_way.push_back(&p);
  }
  std::ranges::stable_sort(on_their_way, {}, [](const PartedParameter* p) { return p->gather->number; });
  std::vector<Tensor> results;
  for (PartedParameter* p : on_their_way) {
    wait_for(*p->gather, Stream::compute);
    if (p->gather->arrivals.size() == 1 && !p->gather->arrivals.front().flat.storage) results.push_back(p->whole);
    release_one(*p);
  }
  for (PartedParameter* p : on_their_way) p->gather = nullptr;
}

bool Zero3Coordinator::is_next(const Submodule& module) const {
  const auto step = static_cast<std::size_t>(step_);
  return step < modules_.size() && modules_[step].name == module.name;
}

/// _invalidate_trace: what runs now is in another order.
void Zero3Coordinator::invalidate() {
  trace_ = Trace::none;
  modules_.clear();
  order_.clear();
  before_.clear();
  queue_.clear();
  for (PartedParameter& p : parameters_) p.fetched_for_step = kNever;
  clear_gathers();
}

/// reset_step: the first forward and backward are recorded, and all others follow that record.
void Zero3Coordinator::begin() {
  clear_gathers();
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
  if (trace_ == Trace::complete && !is_next(module)) invalidate();
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
    wait_for(*gather, stream_);
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
    elements += p.elements;
  }
  gather({chosen.begin(), chosen.end()});
}

void Zero3Coordinator::let_go(PartedParameter& p) {
  p.whole = {};
  p.status = Status::parted;
}

/// __release_param
void Zero3Coordinator::release_one(PartedParameter& p) {
  if (p.status != Status::whole || !p.used_by.empty()) return;
  let_go(p);
  available_ -= p.elements;
}

/// __params_to_release: neither what stays, nor what was seen ahead, nor what comes again soon.
const std::set<std::size_t>& Zero3Coordinator::to_release(const Submodule& module) {
  const auto [known, is_new] = releases_.try_emplace({module.name, step_});
  std::set<std::size_t>& released = known->second;
  if (!is_new) return released;
  for (const std::size_t place : own(module)) {
    const PartedParameter& p = parameters_[place];
    if (!p.is_persistent && p.fetched_for_step <= step_ && !comes_soon(place)) released.insert(place);
  }
  return released;
}

/// Whether the parameter comes again before max_reuse_distance elements of others have come.
bool Zero3Coordinator::comes_soon(std::size_t place) const {
  const std::vector<std::int64_t>& steps = steps_of_[place];
  const auto next = std::ranges::lower_bound(steps, step_);
  if (next == steps.end()) return false;
  const auto at = [&](std::int64_t step) { return before_[static_cast<std::size_t>(step)]; };
  return at(*next) - at(step_) < sizes_.max_reuse_distance;
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
      wait_for(*gather, stream_);
    }
    p.used_by.clear();
    const bool is_there = static_cast<bool>(p.whole.storage);
    if (p.is_of_last_step && is_there && torch_.heap().is_shared(p.whole)) p.of_graph = p.whole;
    p.is_of_last_step = false;
    release_one(p);
  }
}

void Zero3Coordinator::reach(const Submodule& module, int parameter) {
  const std::size_t place = places_.at(parameter);
  if (parameters_[place].status != Status::parted) return;
  reached_[module.name].insert(place);
  gather_alone(parameters_[place]);
}

}  // namespace vramfit::eager
