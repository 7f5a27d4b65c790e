#include "program/count_unit.h"

#include <string>

namespace vramfit {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

constexpr std::array kLabelTexts{": gathered", ": kept slice",           ": gradient shard",
                                 ": gradient", ": accumulated gradient", ": reduce piece"};

}  // namespace

int UnitCounter::label(Label what) {
  int& number = labels_[what];
  if (number < 0) number = shared_.blocks.writer().label(unit_.name + kLabelTexts[what]);
  return number;
}

int UnitCounter::label(Label what, int parameter) {
  int& number = parameter_labels_.try_emplace(parameter, kNoLabels).first->second[what];
  if (number < 0) {
    number = shared_.blocks.writer().label(shared_.graph.parameters[at(parameter)].name + kLabelTexts[what]);
  }
  return number;
}

const UnitParameter& UnitCounter::slot_of(int parameter) const {
  return unit_.parameters[at(shared_.layout.slot_of_parameter[at(parameter)])];
}

void UnitCounter::load() {
  CountedBlocks& blocks = shared_.blocks;
  shard_ = blocks.allocate(unit_.shard_elements, unit_.storage, Category::parameters, unit_.name + ": shard");
  if (unit_.trainable_elements == 0) return;
  const auto make_state = [&](const char* what, std::int64_t elements, Dtype dtype) {
    return blocks.allocate(elements, dtype, Category::optimizer_state, unit_.name + what);
  };
  exp_avg_ = make_state(": exp_avg", unit_.trainable_elements, shared_.precision.state);
  exp_avg_sq_ = make_state(": exp_avg_sq", unit_.trainable_elements, shared_.precision.state);
  step_ = make_state(": step", 1, Dtype::f32);
}

void UnitCounter::gather() {
  if (unit_.gathered_is_shard || gathered_) return;
  gathered_ = shared_.blocks.allocate(unit_.gathered_elements, unit_.compute, Category::unsharded_parameters,
                                      label(Label::gathered));
  kept_slice_.reset();
}

void UnitCounter::reshard() {
  kept_slice_ = shared_.blocks.allocate(unit_.kept_elements, unit_.compute, Category::unsharded_parameters,
                                        label(Label::kept_slice));
  gathered_.reset();
}

void UnitCounter::make_gradient_shard() {
  if (gradient_shard_) return;
  gradient_shard_ = shared_.blocks.allocate(unit_.trainable_elements, unit_.gradient, Category::gradients,
                                            label(Label::gradient_shard));
}

void UnitCounter::make_gradient(OpKind kind, int parameter) {
  if (is_direct_gradient(kind, shared_.precision, shared_.layout)) return make_gradient_shard();
  Buffer& buffer = buffers_[parameter];
  if (buffer.block) return;
  buffer.dtype = gradient_dtype(kind, shared_.precision);
  if (buffer.dtype == unit_.reduce && sums_.contains(parameter)) {
    buffer.block = std::move(sums_.extract(parameter).mapped());
    return;
  }
  buffer.block = shared_.blocks.allocate(slot_of(parameter).padded_elements, buffer.dtype, Category::gradients,
                                         label(Label::gradient, parameter));
}

void UnitCounter::accumulate() {
  for (int parameter : unit_.reduce_order) {
    const auto found = buffers_.find(parameter);
    if (found == buffers_.end()) continue;
    const Buffer buffer = std::move(found->second);
    buffers_.erase(found);
    Block& sum = sums_[parameter];
    if (buffer.dtype == unit_.reduce) {
      sum = buffer.block;
    } else if (!sum) {
      sum = shared_.blocks.allocate(slot_of(parameter).padded_elements, unit_.reduce, Category::gradients,
                                    label(Label::accumulated_gradient, parameter));
    }
  }
}

void UnitCounter::reduce() {
  if (shared_.layout.shards == 1) {
    if (!buffers_.empty()) make_gradient_shard();
    buffers_.clear();
    return;
  }
  for (int parameter : unit_.reduce_order) {
    const auto found = buffers_.find(parameter);
    if (found == buffers_.end()) continue;
    Buffer buffer = std::move(found->second);
    buffers_.erase(found);
    if (buffer.dtype == unit_.reduce) {
      pieces_.push_back(std::move(buffer.block));
      continue;
    }
    if (sums_.contains(parameter)) {
      pieces_.push_back(std::move(sums_.extract(parameter).mapped()));
      continue;
    }
    pieces_.push_back(shared_.blocks.allocate(slot_of(parameter).padded_elements, unit_.reduce, Category::communication,
                                              label(Label::reduce_piece, parameter)));
  }
}

void UnitCounter::finish() {
  if (pieces_.empty()) return;
  make_gradient_shard();
  pieces_.clear();
}

}  // namespace vramfit
