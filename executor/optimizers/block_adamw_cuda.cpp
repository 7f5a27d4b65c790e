#include "executor/optimizers/block_adamw_cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/ops/host_table_torch.h"
#include "executor/ops/random_words_torch.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMoments = 2;
class BlockUpdate {
 public:
  BlockUpdate(OptimizerCall& call, const BlockForm& form)
      : call_(call),
        form_(form),
        scratch_{.elements = call.parameters.numel(),
                 .block = form.block,
                 .rows = call.stretches.empty() ? kRows : kRowsWithWords},
        steps_(call.states.back()) {}

  void run() {
    begin();
    const std::int64_t elements = call_.parameters.numel(), most = scratch_.chunk();
    for (std::int64_t first = 0; first < elements; first += most) {
      chunk_ = {first, std::min(most, elements - first)};
      update_chunk();
    }
    if (call_.found_inf != nullptr) steps_.sub_(*call_.found_inf);  // a step that was skipped isn't counted
  }

 private:
  /// Places among the scratch's numbers.
  static constexpr std::int64_t kStepSize = 8, kRoot = 9, kKeep = 10, kSkipped = 12;

  struct Chunk {
    std::int64_t first = 0, count = 0;
  };

  at::Tensor part(ScratchPart part) const { return call_.scratch->narrow(0, part.begin, part.elements); }
  at::Tensor number(std::int64_t place) const { return part(scratch_.numbers()).narrow(0, place, 1); }
  at::Tensor row(int which) const { return part(scratch_.row(which)).narrow(0, 0, chunk_.count); }
  /// Of int64, over two rows.
  at::Tensor wide_row(int which) const {
    const ScratchPart begin = scratch_.row(which);
    return call_.scratch->narrow(0, begin.begin, 2 * chunk_.count).view(at::kLong);
  }
  at::Tensor indices() const { return row(3).view(at::kInt); }
  at::Tensor blocks(const at::Tensor& values) const { return values.view({-1, form_.block}); }
  at::Tensor table(std::int64_t quarter, std::int64_t count) const {
    return part(scratch_.tables()).narrow(0, quarter * (BlockScratch::kTables / 4), count);
  }
  at::Tensor of_chunk(const at::Tensor& flat, std::int64_t covers) const {
    return flat.narrow(0, chunk_.first / covers, chunk_.count / covers);
  }
  at::Tensor codes(std::int64_t moment) const {
    return of_chunk(call_.states[static_cast<std::size_t>(moment)], form_.codes_per_byte);
  }
  at::Tensor scales(std::int64_t moment) const {
    return of_chunk(call_.states[static_cast<std::size_t>(kMoments + moment)], form_.block);
  }
  at::Tensor skipped() const { return number(kSkipped).view(at::kBool).narrow(0, 0, 1); }

  bool has_codes() const { return form_.codes > 0; }

  void begin() {
    if (has_codes()) part(scratch_.tables()).copy_(host_table(form_.tables), true);
    steps_.add_(1);
    const OptimizerOptions& o = call_.options;
    correction(0, o["beta1"]).reciprocal_().mul_(o.learning_rate);
    number(kStepSize).copy_(corrections().narrow(0, 0, 1));
    correction(1, o["beta2"]).sqrt_();
    number(kRoot).copy_(corrections().narrow(0, 1, 1));
    if (call_.found_inf == nullptr) return;
    number(kKeep).copy_(*call_.found_inf).neg_().add_(1);
    at::Tensor is_skipped = skipped();
    at::ne_out(is_skipped, *call_.found_inf, 0);
  }

  at::Tensor corrections() const { return part(scratch_.numbers()).narrow(0, 0, 4).view(at::kDouble); }
  /// 1 - beta^steps, in double: in fp32 the second moment's would be off by 6e-5 in the first step. By exp, as pow of a
  /// number and a tensor allocates 8 bytes on the GPU.
  at::Tensor correction(std::int64_t moment, double beta) const {
    at::Tensor correction = corrections().narrow(0, moment, 1);
    correction.copy_(steps_);
    return correction.mul_(std::log(beta)).exp_().neg_().add_(1);
  }

  void update_chunk() {
    at::Tensor m = row(0), v = row(1), g = row(2);
    decode(0, m);
    decode(1, v);
    read_gradient(g);
    const OptimizerOptions& o = call_.options;
    m.mul_(o["beta1"]).add_(g, 1 - o["beta1"]);
    v.mul_(o["beta2"]).addcmul_(g, g, 1 - o["beta2"]);
    update_parameters(m, v);
    for (const std::int64_t moment : {0, 1}) {
      at::Tensor& values = moment == 0 ? m : v;
      has_codes() ? encode(moment, values) : keep(codes(moment), values);
    }
  }

  void decode(std::int64_t moment, at::Tensor& values) const {
    const at::Tensor packed = codes(moment);
    if (!has_codes()) {
      values.copy_(packed);
      return;
    }
    at::Tensor index = indices();
    if (form_.codes_per_byte == 1) {
      index.copy_(packed);
    } else {
      at::Tensor low = halves(index, 0), high = halves(index, 1);
      at::bitwise_and_out(low, packed, 0xF);
      at::bitwise_right_shift_out(high, packed, 4);
    }
    at::index_select_out(values, table(moment, form_.codes), 0, index);
    blocks(values).mul_(scales(moment).unsqueeze(1));
  }

  /// Every second index: those of the lower or of the upper halves of bytes.
  static at::Tensor halves(const at::Tensor& index, std::int64_t which) { return index.view({-1, 2}).select(1, which); }

  void read_gradient(at::Tensor& g) const {
    g.copy_(of_chunk(call_.gradients, 1));
    if (call_.gradient_divisor != nullptr) g.div_(*call_.gradient_divisor);
    if (call_.found_inf != nullptr) g.nan_to_num_(0, 0, 0);
  }

  /// What parameters lose is gathered in the gradient's place, and is 0 where a gradient overflowed.
  void update_parameters(const at::Tensor& m, const at::Tensor& v) const {
    const OptimizerOptions& o = call_.options;
    at::Tensor lost = row(2), values = row(3), parameters = of_chunk(call_.parameters, 1);
    at::sqrt_out(lost, v);
    lost.div_(number(kRoot)).add_(o["eps"]);
    at::div_out(lost, m, lost);
    lost.mul_(number(kStepSize));
    values.copy_(parameters);
    lost.add_(values, o.learning_rate * o["weight-decay"]);
    if (call_.found_inf != nullptr) lost.mul_(number(kKeep));
    values.sub_(lost);
    for (const RandomStretch& stretch : call_.stretches) round_randomly(stretch);
    parameters.copy_(values);
  }

  /// As much of the stretch as is in the chunk, whose values then are numbers of bf16.
  void round_randomly(const RandomStretch& stretch) const {
    const std::int64_t begin = std::max(stretch.offset, chunk_.first);
    const std::int64_t count = std::min(stretch.offset + stretch.elements, chunk_.first + chunk_.count) - begin;
    if (count <= 0) return;
    at::Tensor words = wide_row(4).narrow(0, 0, count), bits = wide_row(6).narrow(0, 0, count);
    draw_words(words, bits, stretch.key, stretch.first + begin - stretch.offset);
    constexpr int kUnused = 48;
    constexpr std::int64_t kUpperHalf = -0x10000;
    shift_right(words, bits, kUnused);
    at::Tensor values = row(3).narrow(0, begin - chunk_.first, count), rounded = row(2).narrow(0, 0, count);
    rounded.copy_(values);
    rounded.view(at::kInt).add_(bits).bitwise_and_(kUpperHalf);
    values.add_(rounded.sub_(values));  // what isn't a number stays so
  }

  void encode(std::int64_t moment, at::Tensor& values) const {
    at::Tensor sizes = row(2), index = indices();
    at::Tensor largest = part(scratch_.scales(0)).narrow(0, 0, chunk_.count / form_.block);
    at::Tensor divisor = part(scratch_.scales(1)).narrow(0, 0, chunk_.count / form_.block);
    at::abs_out(sizes, values);
    at::amax_out(largest, blocks(sizes), 1);
    at::clamp_min_out(divisor, largest, std::numeric_limits<float>::min());  // a block of zeros stays one
    blocks(values).div_(divisor.unsqueeze(1));
    constexpr bool kInt32 = true, kRight = false;
    at::bucketize_out(index, values, table(kMoments + moment, form_.codes - 1), kInt32, kRight);
    if (moment == 0) index.bitwise_xor_(form_.zero_of_first);
    if (form_.codes_per_byte == 2) halves(index, 0).add_(halves(index, 1), 0x10);
    keep(codes(moment), form_.codes_per_byte == 1 ? index : halves(index, 0));
    keep(scales(moment), largest);
  }

  /// state = values, unless the step is skipped.
  void keep(at::Tensor state, const at::Tensor& values) const {
    if (call_.found_inf == nullptr) {
      state.copy_(values);
      return;
    }
    at::Tensor rounded = row(2).view(state.scalar_type()).narrow(0, 0, values.numel());
    rounded.copy_(values);
    at::where_out(state, skipped(), state, rounded);
  }

  OptimizerCall& call_;
  const BlockForm& form_;
  BlockScratch scratch_;
  at::Tensor& steps_;
  Chunk chunk_;
};

}  // namespace

void update_blocks_on_cuda(OptimizerCall& call, const BlockForm& form) { BlockUpdate(call, form).run(); }

}  // namespace vramfit
