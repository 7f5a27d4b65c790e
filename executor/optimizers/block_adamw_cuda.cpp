#include "executor/optimizers/block_adamw_cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/sign.h>

#include <algorithm>
#include <limits>

#include "executor/ops/e4m3.h"
#include "executor/ops/host_table_torch.h"
#include "executor/optimizers/adamw_chunks_torch.h"

namespace vramfit {

namespace {

class BlockUpdate : private AdamwChunks {
 public:
  BlockUpdate(OptimizerCall& call, const BlockForm& form) : AdamwChunks(call, form.block), form_(form) {}

  void run() {
    if (has_codes()) part(scratch_.tables()).copy_(host_table(form_.tables), true);
    begin();
    const std::int64_t elements = call_.parameters.numel(), most = scratch_.chunk();
    for (std::int64_t first = 0; first < elements; first += most) {
      chunk_ = {first, std::min(most, elements - first)};
      update_chunk();
    }
    end();
  }

 private:
  at::Tensor indices() const { return row(3).view(at::kInt); }
  at::Tensor blocks(const at::Tensor& values) const { return values.view({-1, form_.block}); }
  at::Tensor table(std::int64_t quarter, std::int64_t count) const {
    return part(scratch_.tables()).narrow(0, quarter * (BlockScratch::kTables / 4), count);
  }
  at::Tensor codes(std::int64_t moment) const { return of_chunk(state(moment), form_.codes_per_byte); }
  at::Tensor scales(std::int64_t moment) const { return of_chunk(state(kMoments + moment), form_.block); }

  bool has_codes() const { return form_.codes > 0; }

  void update_chunk() {
    at::Tensor m = row(0), v = row(1), g = row(2);
    decode(0, m);
    decode(1, v);
    read_gradient(g);
    move_averages(m, v, g);
    update_parameters(m, v);
    for (const std::int64_t moment : {0, 1}) {
      at::Tensor& values = moment == 0 ? m : v;
      if (form_.is_e4m3) {
        round_to_e4m3(moment, values);
      } else {
        has_codes() ? encode(moment, values) : keep(codes(moment), values);
      }
    }
  }

  void decode(std::int64_t moment, at::Tensor& values) const {
    const at::Tensor packed = codes(moment);
    if (form_.is_e4m3) {
      values.copy_(packed.view(at::kFloat8_e4m3fn));
      blocks(values).mul_(scales(moment).unsqueeze(1));
      return;
    }
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

  at::Tensor scales_of_chunk(int number) const {
    return part(scratch_.scales(number)).narrow(0, 0, chunk_.count / form_.block);
  }

  /// Divides each block by its scale, which is its largest magnitude over `largest_value`.
  void divide_by_scales(at::Tensor& values, double largest_value) const {
    at::Tensor sizes = row(2), scale = scales_of_chunk(0), divisor = scales_of_chunk(1);
    at::abs_out(sizes, values);
    at::amax_out(scale, blocks(sizes), 1);
    if (largest_value != 1) scale.div_(largest_value);
    at::clamp_min_out(divisor, scale, std::numeric_limits<float>::min());  // a block of zeros stays one
    blocks(values).div_(divisor.unsqueeze(1));
  }

  void round_to_e4m3(std::int64_t moment, at::Tensor& values) const {
    divide_by_scales(values, E4m3::kLargest);
    if (moment == 1) {  // what isn't 0 doesn't become 0
      at::Tensor least = row(2);
      at::sign_out(least, values).mul_(E4m3::kLeast);
      at::maximum_out(values, values, least);
    }
    keep(codes(moment).view(at::kFloat8_e4m3fn), values);
    keep(scales(moment), scales_of_chunk(0));
  }

  void encode(std::int64_t moment, at::Tensor& values) const {
    at::Tensor index = indices();
    divide_by_scales(values, 1);
    constexpr bool kInt32 = true, kRight = false;
    at::bucketize_out(index, values, table(kMoments + moment, form_.codes - 1), kInt32, kRight);
    if (moment == 0) index.bitwise_xor_(form_.zero_of_first);
    if (form_.codes_per_byte == 2) halves(index, 0).add_(halves(index, 1), 0x10);
    keep(codes(moment), form_.codes_per_byte == 1 ? index : halves(index, 0));
    keep(scales(moment), scales_of_chunk(0));
  }

  const BlockForm& form_;
};

}  // namespace

void update_blocks_on_cuda(OptimizerCall& call, const BlockForm& form) { BlockUpdate(call, form).run(); }

}  // namespace vramfit
