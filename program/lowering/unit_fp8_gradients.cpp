// What of a unit's gradients is kept in FP8 between reductions: e4m3 codes, with a scale for what the rank has of each
// parameter, as MS-AMP keeps gradients of linears' weights (msamp/common/tensor/tensor.py at 9746ea8).
#include <algorithm>
#include <cstdint>

#include "program/lowering/unit.h"
#include "program/stages/fp8_gradients.h"

namespace vramfit::program {

void UnitLowering::make_gradient_codes() {
  if (gradient_codes_) return;
  gradient_codes_ =
      in_.writer.allocate(buffer(unit_.fp8_gradient_elements, Dtype::u8, Category::gradients, "fp8 gradients"));
  gradient_scales_ =
      in_.writer.allocate(buffer(unit_.fp8_gradients, Dtype::f32, Category::gradients, "scales of fp8 gradients"));
  in_.writer.run(run_of(Kernel::zero), {{&gradient_codes_, How::write}, {&gradient_scales_, How::write}});
}

Held UnitLowering::fp8_scratch(std::int64_t elements, std::int64_t rows) const {
  if (in_.device == DeviceKind::cpu) return {};
  return in_.writer.allocate(
      buffer(ScaledScratch{elements, rows}.size(), Dtype::f32, Category::temporaries, "scratch for fp8 gradients"));
}

void UnitLowering::add_fp8_rows(std::size_t slot, const Held& gradient, Dtype dtype) {
  make_gradient_codes();
  const UnitParameter& p = unit_.parameters[slot];
  const Held scratch = fp8_scratch(p.shard_elements);
  in_.writer.run(run_of(Kernel::add_fp8, p.parameter),
                 {Writer::viewed(gradient, How::read, views_.own_rows[slot]),
                  Writer::viewed(gradient_codes_, How::add, views_.gradients[slot]),
                  Writer::viewed(gradient_scales_, How::add, views_.scales[slot]),
                  {&scratch, How::write}},
                 work_of_fp8_addition(p.shard_elements, dtype, in_.device));
}

Held UnitLowering::codes_of(std::size_t slot, Gradient gradient) {
  Writer& writer = in_.writer;
  const UnitParameter& p = unit_.parameters[slot];
  if (Held sum = std::move(gradients_[slot].sum)) {
    writer.run(run_of(Kernel::add, p.parameter), {{&gradient.held, How::read}, {&sum, How::add}});
    gradient = {std::move(sum), unit_.reduce};
  }
  if (!sent_scales_) {
    sent_scales_ = writer.allocate(buffer(checked_mul(in_.layout.shards, unit_.fp8_gradients), Dtype::f32,
                                          Category::communication, "scales of fp8 gradients to send"));
    writer.run(run_of(Kernel::zero), {{&sent_scales_, How::write}});
  }
  Held codes = writer.allocate(buffer_of(p, Dtype::u8, Category::communication, "fp8 gradient to send"));
  const Held scratch = fp8_scratch(p.shard_elements, in_.layout.shards);
  writer.run(
      run_of(Kernel::code_fp8, p.parameter),
      {{&gradient.held, How::read},
       {&codes, How::write},
       Writer::viewed(sent_scales_, How::write, views_.sent_scales[slot]),
       {&scratch, How::write}},
      work_of_scaled_rounding(p.shard_elements, in_.layout.shards, {gradient.dtype, Dtype::f8_e4m3}, in_.device));
  return codes;
}

void UnitLowering::start_exchange() {
  std::int64_t elements = 0;
  received_.reserve(sent_.size());
  for (const auto& [slot, codes] : sent_) {
    const UnitParameter& p = unit_.parameters[slot];
    received_.push_back(
        in_.writer.allocate(buffer_of(p, Dtype::u8, Category::communication, "fp8 gradient of all ranks")));
    elements += p.padded_elements;
  }
  const std::int64_t scales = checked_mul(in_.layout.shards, unit_.fp8_gradients);
  received_scales_ =
      in_.writer.allocate(buffer(scales, Dtype::f32, Category::communication, "scales of fp8 gradients of all ranks"));
  Writer::Operands& operands = in_.writer.operands();
  for (const auto& [slot, codes] : sent_) operands.emplace_back(&codes, How::read);
  operands.emplace_back(&sent_scales_, How::read);
  for (const Held& codes : received_) operands.emplace_back(&codes, How::write);
  operands.emplace_back(&received_scales_, How::write);
  const Bytes bytes = elements * dtype_bytes(Dtype::u8) + scales * dtype_bytes(Dtype::f32);
  exchanging_ = start({.collective = Collective::all_to_all,
                       .axis = Axis::shard,
                       .accesses = {},
                       .bytes = bytes,
                       .part = Bytes{bytes.n / in_.layout.shards}},
                      operands);
}

void UnitLowering::add_exchanged() {
  wait_for(exchanging_);
  sent_scales_.reset();
  make_gradient_codes();
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    auto& [slot, codes] = sent_[i];
    codes.reset();
    const UnitParameter& p = unit_.parameters[slot];
    const Held scratch = fp8_scratch(p.shard_elements, in_.layout.shards + 1);
    in_.writer.run(run_of(Kernel::add_fp8_parts, p.parameter),
                   {{&received_[i], How::read},
                    Writer::viewed(received_scales_, How::read, views_.sent_scales[slot]),
                    Writer::viewed(gradient_codes_, How::add, views_.gradients[slot]),
                    Writer::viewed(gradient_scales_, How::add, views_.scales[slot]),
                    {&scratch, How::write}},
                   work_of_fp8_parts(p.shard_elements, in_.layout.shards, in_.device));
    received_[i].reset();
  }
  sent_.clear();
  received_.clear();
  received_scales_.reset();
}

/// LibTorch has no sum of e4m3 numbers. Each replica gets the codes of all, which are fewer bytes than whole gradients
/// would move as long as there are few replicas, and adds them up by itself.
void UnitLowering::start_fp8_sum() {
  if (!gradient_codes_) return;
  const std::int64_t replicas = in_.replicas;
  const Bytes codes = gradient_codes_bytes(unit_);
  codes_of_replicas_ = in_.writer.allocate(buffer(checked_mul(replicas, unit_.fp8_gradient_elements), Dtype::u8,
                                                  Category::communication, "fp8 gradients of all replicas"));
  scales_of_replicas_ = in_.writer.allocate(buffer(checked_mul(replicas, unit_.fp8_gradients), Dtype::f32,
                                                   Category::communication, "scales of all replicas"));
  const auto copy = [&](const Held& own, const Held& all, int view, Bytes bytes) {
    in_.writer.run(run_of(Kernel::copy), {{&own, How::read}, Writer::viewed(all, How::write_part, view)},
                   Work{.bytes = static_cast<double>((2 * bytes).n)});
  };
  copy(gradient_codes_, codes_of_replicas_, views_.codes_of_replica, Bytes{unit_.fp8_gradient_elements});
  copy(gradient_scales_, scales_of_replicas_, views_.scales_of_replica, unit_.fp8_gradients * dtype_bytes(Dtype::f32));
  summing_ = start({.collective = Collective::all_gather,
                    .axis = Axis::replicate,
                    .accesses = {},
                    .bytes = replicas * codes,
                    .part = codes},
                   {{&codes_of_replicas_, How::add}, {&scales_of_replicas_, How::add}});
}

void UnitLowering::finish_fp8_sum() {
  if (summing_ < 0) return;
  wait_for(summing_);
  std::int64_t longest = 0;
  for (const UnitParameter& p : unit_.parameters) {
    if (p.has_fp8_gradient) longest = std::max(longest, p.shard_elements);
  }
  const Held scratch = fp8_scratch(longest, in_.replicas);
  in_.writer.run(run_of(Kernel::sum_fp8),
                 {{&codes_of_replicas_, How::read},
                  {&scales_of_replicas_, How::read},
                  {&gradient_codes_, How::write},
                  {&gradient_scales_, How::write},
                  {&scratch, How::write}},
                 work_of_fp8_sum(unit_, in_.replicas, in_.device));
  codes_of_replicas_.reset();
  scales_of_replicas_.reset();
}

Held UnitLowering::readable_gradient() {
  if (!gradient_codes_) return gradient_shard_;
  Held whole =
      in_.writer.allocate(buffer(unit_.trainable_elements, unit_.gradient, Category::temporaries, "gradients to read"));
  in_.writer.run(run_of(Kernel::read_fp8),
                 {{&gradient_codes_, How::read},
                  {&gradient_scales_, How::read},
                  {&gradient_shard_, How::read},
                  {&whole, How::write}},
                 work_of_fp8_reading(unit_, in_.device, in_.kernels));
  return whole;
}

}  // namespace vramfit::program
