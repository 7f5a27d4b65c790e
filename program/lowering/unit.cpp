#include "program/lowering/unit.h"

#include <string>

namespace vramfit::program {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Buffer UnitLowering::buffer(std::int64_t elements, Dtype dtype, Category category, const char* what) const {
  return {.bytes = elements * dtype_bytes(dtype),
          .label = in_.labels.number(unit_.name + ": " + what),
          .segment = -1,
          .category = category};
}

Buffer UnitLowering::buffer_of(int parameter, Dtype dtype, Category category, const char* what) const {
  const UnitParameter& slot = unit_.parameters[at(in_.layout.slot_of_parameter[at(parameter)])];
  return {.bytes = slot.padded_elements * dtype_bytes(dtype),
          .label = in_.labels.number(in_.graph.parameters[at(parameter)].name + ": " + what),
          .segment = -1,
          .category = category};
}

void UnitLowering::load() {
  Writer& writer = in_.writer;
  shard_ = writer.allocate(buffer(unit_.shard_elements, unit_.storage, Category::parameters, "shard"));
  writer.run(Kernel::fill, {{&shard_, How::write}});
  if (unit_.trainable_elements == 0) return;
  const auto make_state = [&](const char* what, std::int64_t elements, Dtype dtype) {
    Held state = writer.allocate(buffer(elements, dtype, Category::optimizer_state, what));
    writer.run(Kernel::fill, {{&state, How::write}});
    return state;
  };
  exp_avg_ = make_state("exp_avg", unit_.trainable_elements, in_.precision.state);
  exp_avg_sq_ = make_state("exp_avg_sq", unit_.trainable_elements, in_.precision.state);
  step_ = make_state("step", 1, Dtype::f32);
}

Work UnitLowering::passes(std::int64_t elements, Bytes bytes_of_element) const {
  return {.launches = static_cast<std::int64_t>(unit_.parameters.size()),
          .bytes = static_cast<double>(elements) * static_cast<double>(bytes_of_element.n)};
}

void UnitLowering::add_to_shard(int parameter, const Held& gradient, Dtype dtype) {
  const UnitParameter& slot = unit_.parameters[at(in_.layout.slot_of_parameter[at(parameter)])];
  const Bytes bytes = slot.shard_elements * (dtype_bytes(dtype) + 2 * dtype_bytes(unit_.gradient));
  in_.writer.run(Kernel::add, {{&gradient, How::read}, {&gradient_shard_, How::add}},
                 {.bytes = static_cast<double>(bytes.n)});
}

void UnitLowering::wait_for(int& token) {
  if (token >= 0) in_.writer.write(Wait{token});
  token = -1;
}

void UnitLowering::issue() {
  if (unit_.gathered_is_shard || gathered_) return;
  gathered_ =
      in_.writer.allocate(buffer(unit_.gathered_elements, unit_.compute, Category::unsharded_parameters, "gathered"));
  const bool in_group = static_cast<bool>(kept_slice_);
  const How how = in_.layout.shards == 1 ? How::write : How::write_part;
  const Bytes compute = dtype_bytes(unit_.compute);
  in_.writer.run(Kernel::cast, {{in_group ? &kept_slice_ : &shard_, How::read}, {&gathered_, how}},
                 in_group ? passes(unit_.kept_elements, 2 * compute)
                          : passes(unit_.shard_elements, dtype_bytes(unit_.storage) + compute));
  kept_slice_.reset();
  if (in_.layout.shards == 1) return;
  gathering_ = in_.tokens++;
  in_.writer.start(Collective::all_gather, in_group ? Axis::reshard : Axis::shard,
                   in_.writer.accesses({{&gathered_, How::add}}), gathering_);
}

void UnitLowering::wait() {
  issue();
  wait_for(gathering_);
}

void UnitLowering::release() {
  wait_for(gathering_);
  gathered_.reset();
}

void UnitLowering::reshard() {
  wait();
  kept_slice_ =
      in_.writer.allocate(buffer(unit_.kept_elements, unit_.compute, Category::unsharded_parameters, "kept slice"));
  in_.writer.run(Kernel::cast, {{&gathered_, How::read}, {&kept_slice_, How::write}},
                 passes(unit_.kept_elements, 2 * dtype_bytes(unit_.compute)));
  gathered_.reset();
}

Buffer UnitLowering::gradient_shard_buffer() const {
  return buffer(unit_.trainable_elements, unit_.gradient, Category::gradients, "gradient shard");
}

void UnitLowering::make_gradient_shard() {
  if (gradient_shard_) return;
  gradient_shard_ = in_.writer.allocate(gradient_shard_buffer());
  in_.writer.run(Kernel::fill, {{&gradient_shard_, How::write}});
}

UnitLowering::Home UnitLowering::home(OpKind kind, const ParameterUse& use) {
  const int parameter = use.parameter;
  if (is_direct_gradient(kind, in_.precision, in_.layout)) {
    const bool is_new = !gradient_shard_;
    if (is_new) gradient_shard_ = in_.writer.declare(gradient_shard_buffer());
    return {gradient_shard_, is_new, gradient_shard_buffer().bytes};
  }
  Gradient& gradient = buffers_[parameter];
  if (gradient.held) return {gradient.held, false, {}};
  gradient.dtype = gradient_dtype(kind, in_.precision);
  if (gradient.dtype == unit_.reduce && sums_.contains(parameter)) {
    gradient.held = std::move(sums_.extract(parameter).mapped());
    return {gradient.held, false, {}};
  }
  gradient.held = in_.writer.declare(buffer_of(parameter, gradient.dtype, Category::gradients, "gradient"));
  const UnitParameter& slot = unit_.parameters[at(in_.layout.slot_of_parameter[at(parameter)])];
  const std::int64_t written = use.count < 0 ? slot.rows * slot.row_elements : 0;
  return {gradient.held, true, (slot.padded_elements - written) * dtype_bytes(gradient.dtype)};
}

void UnitLowering::accumulate() {
  for (int parameter : unit_.reduce_order) {
    const auto found = buffers_.find(parameter);
    if (found == buffers_.end()) continue;
    const Gradient gradient = std::move(found->second);
    buffers_.erase(found);
    Held& sum = sums_[parameter];
    if (gradient.dtype == unit_.reduce) {
      sum = gradient.held;  // it went on from the sum, if there was one
    } else if (sum) {
      in_.writer.run(Kernel::add, {{&gradient.held, How::read}, {&sum, How::add}});
    } else {
      sum = in_.writer.allocate(buffer_of(parameter, unit_.reduce, Category::gradients, "accumulated gradient"));
      in_.writer.run(Kernel::cast, {{&gradient.held, How::read}, {&sum, How::write}});
    }
  }
}

void UnitLowering::reduce() {
  Writer& writer = in_.writer;
  if (in_.layout.shards == 1) {
    if (!buffers_.empty()) make_gradient_shard();
    for (const auto& [parameter, gradient] : buffers_) add_to_shard(parameter, gradient.held, gradient.dtype);
    buffers_.clear();
    return;
  }
  std::vector<std::pair<const Held*, How>> reduced;
  for (int parameter : unit_.reduce_order) {
    const auto found = buffers_.find(parameter);
    if (found == buffers_.end()) continue;
    Gradient gradient = std::move(found->second);
    buffers_.erase(found);
    if (gradient.dtype == unit_.reduce) {
      pieces_.emplace_back(parameter, std::move(gradient.held));
      continue;
    }
    if (sums_.contains(parameter)) {
      pieces_.emplace_back(parameter, std::move(sums_.extract(parameter).mapped()));
      writer.run(Kernel::add, {{&gradient.held, How::read}, {&pieces_.back().second, How::add}});
      continue;
    }
    pieces_.emplace_back(parameter,
                         writer.allocate(buffer_of(parameter, unit_.reduce, Category::communication, "reduce piece")));
    writer.run(Kernel::cast, {{&gradient.held, How::read}, {&pieces_.back().second, How::write}});
  }
  if (pieces_.empty()) return;
  for (const auto& [parameter, piece] : pieces_) reduced.emplace_back(&piece, How::add);
  reducing_ = in_.tokens++;
  writer.start(Collective::reduce_scatter, Axis::shard, writer.accesses(reduced), reducing_);
}

void UnitLowering::finish() {
  if (pieces_.empty()) return;
  wait_for(reducing_);
  make_gradient_shard();
  for (const auto& [parameter, piece] : pieces_) add_to_shard(parameter, piece, unit_.reduce);
  pieces_.clear();
}

void UnitLowering::update() {
  if (!gradient_shard_) return;
  constexpr std::int64_t kLaunches = 2;  // counting the step, and one kernel for all
  const Bytes bytes = unit_.trainable_elements * (dtype_bytes(unit_.gradient) + 2 * dtype_bytes(unit_.storage) +
                                                  4 * dtype_bytes(in_.precision.state));
  in_.writer.run(Kernel::update,
                 {{&shard_, How::add},
                  {&gradient_shard_, How::read},
                  {&exp_avg_, How::add},
                  {&exp_avg_sq_, How::add},
                  {&step_, How::add}},
                 {.launches = kLaunches, .bytes = static_cast<double>(bytes.n)});
  gradient_shard_.reset();
}

}  // namespace vramfit::program
