// DeepSpeed's `offload_optimizer` of ZeRO-1 and ZeRO-2: partitions, their gradients and states are in host memory, and
// DeepSpeed's own AdamW updates on the CPU (deepspeed/runtime/zero/stage_1_and_2.py, ops/adam/cpu_adam.py).
#include <algorithm>

#include "program/pytorch/zero/zero.h"
#include "program/pytorch/zero/zero_host.h"

namespace vramfit::eager {

std::int64_t rank_with_largest_slice(const std::vector<std::vector<std::int64_t>>& sizes_of_groups,
                                     std::int64_t ranks) {
  std::int64_t found = 0, most = 0;
  for (const std::vector<std::int64_t>& sizes : sizes_of_groups) {
    const std::int64_t part = partition_of(sizes, ranks, 0).elements;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      for (std::int64_t at = begin; at < begin + size;) {
        const std::int64_t rank = at / part, end = std::min(begin + size, (rank + 1) * part);
        if (end - at > most || (end - at == most && rank > found)) {
          most = end - at;
          found = rank;
        }
        at = end;
      }
      begin += size;
    }
  }
  return found;
}

/// What the group has in host memory: its partition, which is widened there, the same in 16 bits, and the partition's
/// gradient.
void Zero::move_to_host(Group& group, const Tensor& copy) {
  const std::int64_t elements = group.partition.elements;
  {
    const Tensor there = heap().make_on_host(elements, dtype_, Category::parameters, "copy of a partition");
    heap().wait_for_stream(Stream::compute, Stream::host);
    heap().copy_over_link(copy, there, Stream::compute);
    group.master.value =
        offloaded(heap(), pins_, elements, Dtype::f32, Category::parameters, "partition of " + group.name, there);
  }
  group.narrow = offloaded(heap(), pins_, elements, dtype_, Category::parameters, "updated weights of " + group.name);
}

/// Buffers for gradients on their way: of the largest parameter, on the card and in host memory, and of partitions.
void Zero::make_host_gradients() {
  std::int64_t largest = 0;
  for (const Place& place : places_) largest = std::max(largest, place.parameter->elements);
  largest_on_host_ =
      offloaded(heap(), pins_, largest, dtype_, Category::gradients, "gradient of the largest parameter");
  largest_ = heap().make(largest, dtype_, Category::gradients, "gradient from the host");
  for (Group& group : groups_) {
    const Partition& part = group.partition;
    // Without what the pool rounds up.
    group.gradient = heap().narrow(
        offloaded(heap(), pins_, part.elements, Dtype::f32, Category::gradients, "gradient of " + group.name), 0,
        part.elements);
    const std::int64_t own = places_[group.places.back()].end() - part.begin;
    const std::int64_t filled = std::clamp<std::int64_t>(own, 0, part.elements);
    if (filled == part.elements) continue;
    const Tensor padding = heap().narrow(group.gradient, filled, part.elements - filled);
    heap().run("aten::zeros", {writes(padding)}, {.bytes = bytes_in(padding)}, Stream::host);
  }
  heap().wait_for_stream(Stream::compute, Stream::host);
}

/// async_accumulate_grad_in_cpu_via_gpu: the whole of each gradient, in the model's type.
void Zero::add_on_host(Place& place, const Tensor& gradient) {
  if (!place.on_host.storage) {
    place.on_host = offloaded(heap(), pins_, gradient.elements, dtype_, Category::gradients,
                              "gradients so far of " + place.parameter->name);
    heap().wait_for_stream(stream_, Stream::host);
  }
  if (micro_batch_ > 0) {
    const Tensor before = heap().narrow(largest_, 0, gradient.elements);
    heap().copy_over_link(place.on_host, before, stream_);
    heap().run("aten::add_", {reads(before), changes(gradient)}, stream_);
  }
  if (!is_last_ || !pins_) return heap().copy_over_link(gradient, place.on_host, stream_);
  // Nothing reads this one.
  heap().run("aten::copy_", {reads(gradient)}, {.unit = Work::Unit::host_link, .bytes = bytes_in(gradient)}, stream_);
}

/// copy_grads_in_partition: in a step's last micro-batch the norm of what is the rank's, whether any of it overflowed,
/// and what is the rank's, in fp32.
void Zero::send_to_host(Ready& ready) {
  Place& place = places_[ready.place];
  Group& group = groups_[place.group];
  if (stage_ == 2 && accumulates_) add_on_host(place, ready.gradient);
  if (!is_last_) return;
  const Partition& part = group.partition;
  const std::int64_t begin = std::max(part.begin, place.begin);
  const std::int64_t elements = std::min(part.begin + part.elements, place.end()) - begin;
  const Tensor own = heap().narrow(ready.gradient, begin - place.begin, elements);
  place.norm = norm_in_fp64(own);
  is_overflown(ready.gradient);
  const Tensor wide = computed("aten::_to_copy", {reads(own)}, elements, Dtype::f32, "gradient on its way to the host");
  heap().copy_over_link(wide, heap().narrow(group.gradient, begin - part.begin, elements), stream_);
}

/// has_overflow, and complete_grad_norm_calculation_for_cpu_offload of each group: numbers of the host, summed over
/// ranks on the card.
void Zero::sum_on_card(Dtype dtype, const char* what) {
  const Tensor sum = number("aten::_to_copy", {}, dtype, what);
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(sum)}, Stream::compute),
              Stream::compute);
}

void Zero::update_on_host(Group& group, const std::function<void()>& optimizer) {
  heap().run("aten::mul_", {changes(group.gradient)}, {.bytes = 2 * bytes_in(group.gradient)}, Stream::host);
  optimizer();
  heap().run("aten::copy_", {reads(group.master.value), writes(group.narrow)},
             {.bytes = bytes_in(group.master.value) + bytes_in(group.narrow)}, Stream::host);
  heap().wait_for_stream(Stream::compute, Stream::host);
  const Partition& part = group.partition;
  heap().copy_over_link(group.narrow, heap().narrow(group.flat, part.begin, part.elements), Stream::compute);
}

void Zero::step_on_host(const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) {
  enter(Phase::clip);
  heap().wait_for_stream(Stream::host, Stream::compute);
  sum_on_card(Dtype::u8, "is there one that overflowed");
  for (std::size_t group = 0; group < groups_.size(); ++group) sum_on_card(Dtype::f32, "sum of squares");
  heap().wait_for_stream(Stream::host, Stream::compute);
  enter(Phase::optimizer);
  for (updated_ = 0; updated_ < groups_.size(); ++updated_) update_on_host(groups_[updated_], optimizer);
  updated_ = 0;
  for (Place& place : places_) place.norm = {};
  gather_updated();
}

}  // namespace vramfit::eager
