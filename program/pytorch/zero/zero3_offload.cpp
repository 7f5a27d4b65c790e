// DeepSpeed's `offload_optimizer` and `offload_param` of ZeRO-3: what a rank updates is in host memory, and so are its
// parts of parameters, which come to the card for each gather (deepspeed/runtime/zero/stage3.py).
#include <algorithm>
#include <utility>

#include "program/pytorch/zero/zero3.h"
#include "program/pytorch/zero/zero_host.h"
#include "program/readers/host_bytes.h"

namespace vramfit::eager {

namespace {

/// _constant_buffered_norm2: as many elements of a gradient are widened at once.
constexpr std::int64_t kWidenedAtOnce = 250'000'000;

}  // namespace

/// _create_param_groups_fp16_flat_cpu_memory, _move_to_flat_buffer: a flat tensor for each of the optimizer's groups.
void Zero3::flatten_on_host() {
  std::vector<std::int64_t> sizes;
  for (const Group& group : groups_) {
    sizes.resize(group.of_optimizer + 1);
    sizes[group.of_optimizer] = checked_add(sizes[group.of_optimizer], group.elements);
  }
  std::vector<Tensor> flats;
  for (const std::int64_t elements : sizes) {
    // Whatever pin_memory says.
    flats.push_back(offloaded(heap(), true, elements, trained_dtype_, Category::parameters, "parts of all parameters"));
  }
  heap().wait_for_stream(Stream::host, Stream::compute);
  std::vector<std::int64_t> begins(sizes.size());
  for (Group& group : groups_) {
    const Tensor& all = flats[group.of_optimizer];
    std::int64_t& begin = begins[group.of_optimizer];
    group.flat = heap().narrow(all, begin, group.elements);
    for (const std::size_t place : group.parameters) {
      PartedParameter& p = coordinator_.parameters()[place];
      const Tensor there = heap().narrow(all, begin, p.part_elements);
      heap().run("aten::copy_", {reads(p.part), writes(there)}, {.bytes = 2 * bytes_in(there)}, Stream::host);
      Tensor moved = std::exchange(p.part, there);
      if (offload_.pins_parameters) pooled_.push_back(std::move(moved));
      begin += p.part_elements;
    }
  }
  heap().wait_for_stream(Stream::compute, Stream::host);
}

/// flat.to("cpu", torch.float32): what comes from the card is widened there, unless it is wide.
Tensor Zero3::widened_on_host(const Tensor& flat, const std::string& what) {
  Tensor wide, there = flat;
  if (flat.dtype != Dtype::f32) wide = heap().make_on_host(flat.elements, Dtype::f32, Category::parameters, what);
  if (!offload_.parameters) {
    there = heap().make_on_host(flat.elements, flat.dtype, Category::parameters, what + ", as they came");
    heap().wait_for_stream(Stream::compute, Stream::host);
    heap().copy_over_link(flat, there, Stream::compute);
  }
  if (!wide.storage) return there;
  heap().run("aten::_to_copy", {reads(there), writes(wide)}, {.bytes = bytes_in(there) + bytes_in(wide)}, Stream::host);
  return wide;
}

/// _create_fp32_partitions, each by way of a copy, in pageable memory; and initialize_optimizer_states, which makes the
/// gradients of parts.
void Zero3::make_masters_on_host() {
  std::int64_t most = 0;
  Tensor converted;
  for (Group& group : groups_) {
    converted = widened_on_host(group.flat, "converted parts");
    group.master.value =
        heap().make_on_host(group.elements, Dtype::f32, Category::parameters, "master of " + group.name);
    heap().run("aten::clone", {reads(converted), writes(group.master.value)}, {.bytes = 2 * bytes_in(converted)},
               Stream::host);
    most = std::max(most, group.elements);
  }
  converted = {};
  const Tensor zeros = heap().make_on_host(most, Dtype::f32, Category::gradients, "gradient of zeros");
  for (Group& group : groups_) {
    group.gradient = heap().narrow(offloaded(heap(), offload_.pins_states, group.elements, Dtype::f32,
                                             Category::gradients, "gradient of " + group.name),
                                   0, group.elements);
  }
}

void Zero3::make_gradients_on_host() {
  std::int64_t elements = 0;
  for (const Group& group : groups_) elements = checked_add(elements, group.elements);
  if (offload_.pins_states) {  // what the pool has free of that size is taken
    const auto pooled = [](const Tensor& part) { return pinned_by_pool(part.elements * dtype_bytes(part.dtype)); };
    const auto free = std::ranges::find(pooled_, pinned_by_pool(elements * dtype_bytes(dtype_)), pooled);
    if (free != pooled_.end()) pooled_.erase(free);
  }
  gradients_ = heap().narrow(
      offloaded(heap(), offload_.pins_states, elements, dtype_, Category::gradients, "gradients of the parts"), 0,
      elements);
  heap().wait_for_stream(Stream::compute, Stream::host);
}

/// partition_grads: by way of the host to the card again, where it is added up; and _offload_grad_partition_at_boundary
/// in a step's last micro-batch.
void Zero3::send_to_host(std::size_t parameter, const Tensor& flat, Tensor& on_card) {
  const Tensor& part = gradient_parts_[parameter];
  const auto come_back = [&] {
    Tensor made = heap().make(part.elements, dtype_, Category::communication, "gradient from the host", reducing_);
    heap().copy_over_link(part, made, reducing_);
    return made;
  };
  if (!accumulates_) {
    on_card = {};
    heap().copy_over_link(flat, part, reducing_);
    on_card = come_back();
  } else {
    on_card = come_back();
    heap().run("aten::add_", {reads(flat), changes(on_card)}, {.bytes = 3 * bytes_in(part)}, reducing_);
    heap().copy_over_link(on_card, part, reducing_);
  }
  if (!is_last_) return;
  norms_[parameter] = norm_on_way(on_card);
  for (Group& group : groups_) {
    std::int64_t begin = 0;
    for (const std::size_t place : group.parameters) {
      if (place == parameter) {
        stream_ = reducing_;
        const Tensor wide = computed("aten::_to_copy", {reads(on_card)}, part.elements, Dtype::f32, "gradient in fp32");
        heap().copy_over_link(wide, heap().narrow(group.gradient, begin, part.elements), reducing_);
        stream_ = Stream::compute;
        return;
      }
      begin += coordinator_.parameters()[place].part_elements;
    }
  }
}

/// _constant_buffered_norm2
Tensor Zero3::norm_on_way(const Tensor& gradient) {
  stream_ = reducing_;
  Tensor squared;
  for (std::int64_t begin = 0; begin < gradient.elements; begin += kWidenedAtOnce) {
    const Tensor slice = heap().narrow(gradient, begin, std::min(kWidenedAtOnce, gradient.elements - begin));
    const Tensor norm = norm_in_fp64(slice);
    const Tensor square = number("aten::pow", {reads(norm)}, Dtype::i64, "square of a norm");
    if (squared.storage) {
      heap().run("aten::add_", {reads(square), changes(squared)}, reducing_);
    } else {
      squared = square;
    }
  }
  const Tensor norm = number("aten::pow", {reads(squared)}, Dtype::i64, "norm of a part");
  stream_ = Stream::compute;
  return norm;
}

/// has_overflow, where what is trained is fp16: the host looks through the rank's gradients.
void Zero3::check_overflow_on_host() {
  const auto look = [&](const char* call, const Tensor& x, Dtype dtype, const char* what) {
    Tensor made = heap().make_on_host(x.elements, dtype, Category::temporaries, what);
    heap().run(call, {reads(x), writes(made)}, {.bytes = bytes_in(x) + bytes_in(made)}, Stream::host);
    return made;
  };
  look("aten::eq", look("aten::abs", gradients_, dtype_, "magnitude"), Dtype::u8, "is it infinite");
  look("aten::ne", gradients_, Dtype::u8, "is it no number");
  heap().wait_for_stream(reducing_, Stream::host);
  stream_ = reducing_;
  Tensor flag;
  {
    const Tensor came = number("aten::_to_copy", {}, Dtype::u8, "is there one");
    flag = number("aten::_to_copy", {reads(came)}, Dtype::u8, "is there one, as a byte");
  }
  stream_ = Stream::compute;
  wait_on(Stream::compute);
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(flag)}, Stream::compute),
              Stream::compute);
}

/// complete_grad_norm_calculation_for_cpu_offload, whose result goes to the host.
void Zero3::sum_norms(const Group& group) {
  Tensor sum;
  for (const std::size_t place : group.parameters) {
    const Tensor square = number("aten::pow", {reads(norms_[place])}, Dtype::i64, "square of a norm");
    if (sum.storage) {
      heap().run("aten::add_", {reads(square), changes(sum)});
    } else {
      sum = number("aten::add", {reads(square)}, Dtype::i64, "sum of squares");
    }
  }
  const Tensor all = number("aten::_to_copy", {}, Dtype::f32, "sum of squares of all ranks");
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(all)}, Stream::compute),
              Stream::compute);
  const Tensor norm = number("aten::pow", {reads(all)}, Dtype::f32, "norm of a group");
  sum = {};
  mark_if_invalid(norm);
}

void Zero3::update_on_host(Group& group, const std::function<void()>& optimizer) {
  heap().run("aten::mul_", {changes(group.gradient)}, {.bytes = 2 * bytes_in(group.gradient)}, Stream::host);
  optimizer();
  const Tensor& master = group.master.value;
  const Work narrowed{.bytes = bytes_in(master) + bytes_in(group.flat)};
  if (offload_.parameters) {
    heap().run("aten::copy_", {reads(master), writes(group.flat)}, narrowed, Stream::host);
    return;
  }
  Tensor narrow = master;
  if (trained_dtype_ != Dtype::f32) {
    narrow = heap().make_on_host(group.elements, trained_dtype_, Category::parameters, "updated parts");
    heap().run("aten::_to_copy", {reads(master), writes(narrow)}, narrowed, Stream::host);
  }
  heap().copy_over_link(narrow, group.flat, Stream::compute);
  heap().wait_for_stream(Stream::host, Stream::compute);
}

void Zero3::step_on_host(const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) {
  heap().wait_for_stream(Stream::host, Stream::compute);
  if (trained_dtype_ == Dtype::f16) check_overflow_on_host();
  for (const Group& group : groups_) sum_norms(group);
  heap().wait_for_stream(Stream::host, Stream::compute);
  enter(Phase::optimizer);
  for (updated_ = 0; updated_ < groups_.size(); ++updated_) update_on_host(groups_[updated_], optimizer);
  updated_ = 0;
  heap().wait_for_stream(Stream::compute, Stream::host);
  for (Tensor& norm : norms_) norm = {};
  coordinator_.gather_persistent();
  coordinator_.end_recording();
}

}  // namespace vramfit::eager
