#include "program/pytorch/zero/zero.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "program/stages/offload.h"

namespace vramfit::eager {

namespace {

// stage_1_and_2.py: nccl_start_alignment_factor, 4 bytes of 16-bit numbers.
constexpr std::int64_t kAlignment = 2;

bool meets(const Partition& partition, std::int64_t begin, std::int64_t end) {
  return begin < partition.begin + partition.elements && partition.begin < end;
}

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum = checked_add(sum, size);
  return sum;
}

}  // namespace

Partition partition_of(const std::vector<std::int64_t>& sizes, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t elements = kAlignment * ceil_div(sum_of(sizes), checked_mul(kAlignment, ranks));
  return {checked_mul(elements, rank), elements};
}

std::int64_t kept_elements(const std::vector<std::vector<std::int64_t>>& sizes_of_groups, std::int64_t ranks,
                           std::int64_t rank) {
  std::int64_t kept = 0;
  for (const std::vector<std::int64_t>& sizes : sizes_of_groups) {
    const Partition partition = partition_of(sizes, ranks, rank);
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      if (meets(partition, begin, begin + size)) kept += size;
      begin += size;
    }
  }
  return kept;
}

std::int64_t heaviest_rank(const std::vector<std::vector<std::int64_t>>& sizes_of_groups, std::int64_t ranks) {
  std::int64_t heaviest = 0, most = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t kept = kept_elements(sizes_of_groups, ranks, rank);
    if (kept <= most) continue;
    most = kept;
    heaviest = rank;
  }
  return heaviest;
}

Zero::Zero(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules)
    : WholeModel(torch, graph, job, modules),
      ZeroNumbers(torch),
      stage_(job.sharding == "shard-grad-op" ? 2 : 1),
      dtype_(job.precision.compute),
      ranks_(job.mesh.shard),
      bucket_elements_(job.bucket_bytes / dtype_bytes(dtype_).n),
      offloads_(offload_of(job).states),
      pins_(offload_of(job).pins_states),
      accumulates_(job.accumulation > 1),
      overlaps_(overlaps_reductions(job)) {
  std::vector<OptimizerGroup> groups = WholeModel::groups();
  std::vector<std::vector<std::int64_t>> sizes;
  for (const OptimizerGroup& group : groups) {
    sizes.emplace_back();
    for (const Trained* p : group.parameters) sizes.back().push_back(p->elements);
  }
  rank_ = offloads_ ? rank_with_largest_slice(sizes, ranks_) : heaviest_rank(sizes, ranks_);
  kept_elements_ = kept_elements(sizes, ranks_, rank_);
  for (std::size_t i = 0; i < groups.size(); ++i)
    add_group(groups[i].parameters, partition_of(sizes[i], ranks_, rank_));
  torch.on_gradient([this](int parameter) { take(parameter); });
}

void Zero::add_group(const std::vector<Trained*>& parameters, const Partition& partition) {
  if (parameters.empty()) return;
  Group group;
  group.name = fmt::format("group {}", groups_.size());
  std::int64_t begin = 0;
  for (Trained* p : parameters) {
    group.places.push_back(places_.size());
    place_of_[p->parameter] = places_.size();
    places_.push_back({.parameter = p, .group = groups_.size(), .begin = begin});
    begin = checked_add(begin, p->elements);
  }
  group.partition = partition;
  group.elements = checked_mul(group.partition.elements, ranks_);
  group.master.name = group.name;
  group.master.elements = group.partition.elements;
  groups_.push_back(std::move(group));
}

bool Zero::is_kept(const Place& place) const { return meets(groups_[place.group].partition, place.begin, place.end()); }

/// The model in 16 bits, then group by group its flat copy.
void Zero::load() {
  WholeModel::load();
  const Scope scope(heap(), "zero");
  for (Group& group : groups_) flatten(group);
  offloads_ ? make_host_gradients() : make_gradients_once();
}

void Zero::flatten(Group& group) {
  heap().empty_cache();
  {
    const std::int64_t own = places_[group.places.back()].end();
    Accesses accesses;
    for (const std::size_t place : group.places) accesses.push_back(reads(places_[place].parameter->value));
    Tensor padding;
    if (own < group.elements) {
      padding = computed("aten::zeros", {}, group.elements - own, dtype_, "padding");
      accesses.push_back(reads(padding));
    }
    group.flat = heap().make(group.elements, dtype_, Category::unsharded_parameters, "weights of " + group.name);
    accesses.push_back(writes(group.flat));
    heap().run("aten::cat", accesses);
  }
  for (const std::size_t number : group.places) {
    const Place& place = places_[number];
    place.parameter->value = heap().narrow(group.flat, place.begin, place.parameter->elements);
    torch().set_parameter(place.parameter->parameter, place.parameter->value);
  }
  const Partition& part = group.partition;
  const Tensor copy = computed("aten::clone", {reads(heap().narrow(group.flat, part.begin, part.elements))},
                               part.elements, dtype_, "copy of a partition");
  if (offloads_) return move_to_host(group, copy);
  group.master.value = heap().make(part.elements, Dtype::f32, Category::parameters, "partition of " + group.name);
  heap().run("aten::_to_copy", {reads(copy), writes(group.master.value)});
}

/// initialize_optimizer_states, which initializes none.
void Zero::make_gradients_once() {
  std::vector<Tensor> gradients;
  for (const Group& group : groups_) {
    gradients.push_back(computed("aten::zeros", {}, group.partition.elements, Dtype::f32, "gradient of zeros"));
  }
}

/// setup_buckets: for the first gradient of a micro-batch; ZeRO-1's stays until the step.
void Zero::make_bucket() {
  if (bucket_.storage) return;
  const Scope scope(heap(), "zero");
  bucket_ = heap().make(bucket_elements_, dtype_, Category::communication, "bucket of gradients");
  if (!overlaps_) return;
  other_bucket_ = heap().make(bucket_elements_, dtype_, Category::communication, "other bucket of gradients");
}

/// process_gradients: a gradient is there.
void Zero::take(int parameter) {
  make_bucket();
  if (stage_ == 2 || (overlaps_ && is_last_)) make_ready(place_of_.at(parameter));
}

/// reduce_independent_p_g_buckets_and_remove_grads. What doesn't fit into the bucket waits where it is.
void Zero::make_ready(std::size_t place) {
  const std::int64_t elements = places_[place].parameter->elements;
  if (ready_elements_ + elements > bucket_elements_) {
    reduce_bucket();
    if (overlaps_) std::swap(bucket_, other_bucket_);
  }
  const Tensor gradient = torch().take_gradient(places_[place].parameter->parameter);
  Tensor moved = gradient;
  if (elements > bucket_elements_) {
    if (offloads_) moved = computed("aten::clone", {reads(gradient)}, elements, dtype_, "large gradient");
  } else {
    moved = heap().narrow(bucket_, ready_elements_, elements);
    heap().run("aten::copy_", {reads(gradient), writes(moved)});
  }
  ready_.push_back({place, std::move(moved)});
  ready_elements_ += elements;
}

/// average_tensor's ranges: each rank's neighbours together.
std::vector<Zero::Slice> Zero::slices() const {
  std::vector<Slice> all;
  for (const Ready& ready : ready_) {
    const Place& place = places_[ready.place];
    const std::int64_t size = groups_[place.group].partition.elements;
    for (std::int64_t at = place.begin; at < place.end();) {
      const std::int64_t rank = at / size, end = std::min(place.end(), (rank + 1) * size);
      if (all.empty() || all.back().rank != rank) all.push_back({.rank = rank});
      all.back().elements += end - at;
      at = end;
    }
  }
  return all;
}

/// reduce_ipg_grads. On a stream of their own, reductions begin when the bucket is filled, and the next one is filled
/// when they are done with the one before.
void Zero::reduce_bucket() {
  if (ready_.empty()) return;
  const Scope scope(heap(), "zero");
  if (overlaps_) {
    stream_ = Stream::reduce_scatter;
    wait_for_reductions();
    heap().wait_for_stream(stream_, Stream::compute);
  }
  const bool is_large = ready_elements_ > bucket_elements_;
  const Tensor whole = is_large ? ready_.front().gradient : heap().narrow(bucket_, 0, ready_elements_);
  heap().run("aten::div_", {changes(whole)}, stream_);
  reduce_slices(whole, slices());
  for (Ready& ready : ready_) {
    if (is_kept(places_[ready.place])) {
      offloads_ ? send_to_host(ready) : keep(ready);
      if (offloads_ && is_large && !is_last_) held_.push_back(ready.gradient);
    } else if (stage_ == 1 && is_large) {
      held_.push_back(ready.gradient);
    }
  }
  // What is no part of the bucket goes back to the pool that it came from (record_stream).
  if (overlaps_ && is_large) wait_for_reductions();
  ready_.clear();
  ready_elements_ = 0;
  stream_ = Stream::compute;
}

/// allreduce_and_scatter: no more than a bucket and one slice at once.
void Zero::reduce_slices(const Tensor& whole, const std::vector<Slice>& slices) {
  std::vector<Tensor> together;
  std::vector<std::int64_t> ranks;
  std::int64_t at = 0, elements = 0;
  for (const Slice& slice : slices) {
    together.push_back(heap().narrow(whole, at, slice.elements));
    ranks.push_back(slice.rank);
    at += slice.elements;
    elements += slice.elements;
    if (elements <= bucket_elements_) continue;
    all_reduce(together, ranks);
    together.clear();
    ranks.clear();
    elements = 0;
  }
  if (!together.empty()) all_reduce(together, ranks);
}

/// allreduce_and_copy_with_multiple_ranks: in a copy, unless it is one slice.
void Zero::all_reduce(const std::vector<Tensor>& slices, const std::vector<std::int64_t>& ranks) {
  Tensor flat = slices.front();
  if (slices.size() > 1) {
    std::int64_t elements = 0;
    Accesses accesses;
    for (const Tensor& slice : slices) {
      elements += slice.elements;
      accesses.push_back(reads(slice));
    }
    flat = computed("aten::cat", accesses, elements, dtype_, "flat gradients");
  }
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(flat)}, stream_), stream_);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (ranks[i] == rank_) {
      heap().run("aten::copy_", {reads(heap().narrow(flat, at, slices[i].elements)), writes(slices[i])}, stream_);
    }
    at += slices[i].elements;
  }
}

/// copy_grads_in_partition
void Zero::keep(Ready& ready) {
  Place& place = places_[ready.place];
  if (!kept_.storage) {
    kept_ = heap().make(kept_elements_, dtype_, Category::gradients, "gradients of the partition", stream_);
    used_elements_ = 0;
  }
  place.kept = heap().narrow(kept_, used_elements_, place.parameter->elements);
  used_elements_ += place.parameter->elements;
  heap().run("aten::copy_", {reads(ready.gradient), writes(place.kept)}, stream_);
}

/// independent_gradient_partition_epilogue; ZeRO-1 begins to reduce here, in the step's last micro-batch.
void Zero::finish_backward() {
  if (stage_ == 1) {
    if (!is_last_) return;
    for (std::size_t place = 0; place < places_.size() && !overlaps_; ++place) make_ready(place);
  }
  reduce_bucket();
  if (overlaps_) wait_for_reductions();
  const Scope scope(heap(), "zero");
  for (Group& group : groups_) {
    if (offloads_) break;
    add_up(group);
    if (is_last_) cut(group);
  }
  micro_batch_ = is_last_ ? 0 : micro_batch_ + 1;
  for (Place& place : places_) place.kept = {};
  kept_ = {};
  bucket_ = {};
  other_bucket_ = {};
  held_.clear();
}

void Zero::add_up(Group& group) {
  for (const std::size_t number : group.places) {
    Place& place = places_[number];
    if (!place.kept.storage) continue;
    if (!place.accumulated.storage) {
      place.accumulated = place.kept;
    } else {
      heap().run("aten::add_", {reads(place.kept), changes(place.accumulated)});
    }
  }
}

/// get_flat_partition: what of each kept gradient is the rank's, and zeros where the partition is padding.
void Zero::cut(Group& group) {
  const Partition& part = group.partition;
  std::int64_t left = part.elements;
  for (const std::size_t number : group.places) {
    Place& place = places_[number];
    if (!place.accumulated.storage) continue;
    const std::int64_t first = std::max<std::int64_t>(part.begin - place.begin, 0);
    const std::int64_t elements = std::min(place.parameter->elements - first, left);
    group.pieces.push_back(heap().narrow(place.accumulated, first, elements));
    left -= elements;
    place.accumulated = {};
  }
  if (left > 0) group.pieces.push_back(computed("aten::zeros", {}, left, dtype_, "padding of gradients"));
}

std::vector<Trained*> Zero::updated() {
  std::vector<Trained*> masters;
  for (Group& group : groups_) masters.push_back(&group.master);
  return masters;
}

std::vector<OptimizerGroup> Zero::groups() {
  Group& group = groups_[updated_];
  return {{{&group.master}, {group.gradient}}};
}

}  // namespace vramfit::eager
