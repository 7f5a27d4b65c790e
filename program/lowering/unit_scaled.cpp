// Trained matrices whose shards are fp16 numbers with a scale for what the rank has of each, as MS-AMP keeps master
// weights (msamp/common/tensor/tensor.py at 9746ea8). An update reads and writes numbers that are made of them.
#include "program/lowering/unit.h"
#include "program/stages/scaled_masters.h"

namespace vramfit::program {

Held UnitLowering::numbers_to_update() {
  if (unit_.scales == 0) return {};
  Held numbers =
      in_.writer.allocate(buffer(unit_.trainable_elements, unit_.trained, Category::temporaries, "numbers to update"));
  const bool has_others = trained_beside_scaled(unit_) > 0;
  in_.writer.run(
      run_of(Kernel::read_scaled),
      {{&shards_.front(), How::read},
       {&scales_, How::read},
       has_others ? Writer::viewed(shards_[1], How::read, views_.beside_scaled) : Writer::Operand{nullptr, How::read},
       {&numbers, How::write}},
      work_of_scaled_reading(unit_, in_.device, in_.kernels));
  return numbers;
}

void UnitLowering::keep_numbers(const Held& numbers) {
  Held scratch;
  if (in_.device == DeviceKind::cuda && in_.kernels == KernelSource::libtorch) {
    scratch =
        in_.writer.allocate(buffer(scaled_scratch(unit_), Dtype::f32, Category::temporaries, "scratch for scales"));
  }
  const bool has_others = trained_beside_scaled(unit_) > 0;
  in_.writer.run(
      run_of(Kernel::round_scaled),
      {{&numbers, How::read},
       {&shards_.front(), How::write},
       {&scales_, How::write},
       has_others ? Writer::viewed(shards_[1], How::write, views_.beside_scaled) : Writer::Operand{nullptr, How::read},
       {&scratch, How::write}},
      work_of_scaled_rounding(unit_, in_.device, in_.kernels));
}

}  // namespace vramfit::program
