#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "executor/ops/quantized_torch.h"
#include "executor/sharding/load_rows_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 22;  // elements in fp32 on the host, or whole rows

class QuantizingRows final : public RowSupply {
 public:
  QuantizingRows(std::unique_ptr<RowSupply> rows, const QuantizingLoad& in) : rows_(std::move(rows)), in_(in) {}

  void fill(const Parameter& parameter, const UnitParameter& p, at::Tensor slice) override {
    if (p.quantization == nullptr) return rows_->fill(parameter, p, std::move(slice));
    if (in_.saved != nullptr) return read_codes(parameter, p, slice);
    if (!in_.has_values) {
      (void)mean_of(p, 0);
      return;
    }
    const QuantizedRows matrix = quantized_rows(p, in_.shard_group.rank());
    std::vector<std::uint8_t> copy(slice.is_cpu() ? 0 : static_cast<std::size_t>(slice.numel()));
    const at::Tensor host = slice.is_cpu() ? slice : tensor_over(copy.data(), slice.numel(), at::kByte);
    RowsQuantizer quantizer(matrix, {host.mutable_data_ptr<std::uint8_t>(), host.nbytes()});
    read(parameter, p, quantizer);
    quantizer.finish(mean_of(p, quantizer.sum_of_scales()));
    if (!slice.is_cpu()) slice.copy_(host);
  }

  void fill_scaled(const Parameter& parameter, const UnitParameter& p, const ScaledPart& into) override {
    load_scaled(in_, parameter, p, into);
  }

 private:
  /// The first row that this rank has, and how many.
  std::pair<std::int64_t, std::int64_t> rows_here(const UnitParameter& p) const {
    return {p.rows_per_rank * in_.shard_group.rank(), own_rows(p, in_.shard_group.rank())};
  }

  void read_codes(const Parameter& parameter, const UnitParameter& p, at::Tensor& slice) const {
    const auto [first, own] = rows_here(p);
    if (own > 0) in_.saved->read_blocks(kCodesKind, parameter, first, own, slice);
  }

  void read(const Parameter& parameter, const UnitParameter& p, RowsQuantizer& quantizer) {
    const auto [first, own] = rows_here(p);
    const std::int64_t step = quantizer.row_step();
    const std::int64_t most =
        std::max(kChunk / std::max<std::int64_t>(p.row_elements * step, 1), std::int64_t{1}) * step;
    values_.resize(static_cast<std::size_t>(std::min(most, own) * p.row_elements));
    for (std::int64_t row = 0; row < own; row += most) {
      const std::int64_t rows = std::min(most, own - row), elements = rows * p.row_elements;
      at::Tensor into = tensor_over(values_.data(), elements, at::kFloat);
      in_.weights.read_rows(parameter, first + row, rows, into);
      quantizer.add(std::span(values_).first(static_cast<std::size_t>(elements)));
    }
  }

  /// Of the scales of the whole matrix. A collective call where they have a mean.
  float mean_of(const UnitParameter& p, double own_sum) const {
    if (p.quantization->scale_block == 0) return 0;
    std::int64_t scales = 0;
    for (int rank = 0; rank < in_.shard_group.size(); ++rank) {
      scales += scales_of(*p.quantization, own_rows(p, rank) * p.row_elements, p.row_elements);
    }
    double sum = own_sum;
    if (in_.shard_group.size() > 1) {
      const at::Tensor host = tensor_over(&sum, 1, at::kDouble);
      at::Tensor shared = in_.sum->view(at::kDouble);
      shared.copy_(host);
      if (const Pending summing = in_.shard_group.all_reduce({shared})) summing->wait();
      host.copy_(shared);
    }
    return scales == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(scales));
  }

  std::unique_ptr<RowSupply> rows_;
  QuantizingLoad in_;
  std::vector<float> values_;
};

}  // namespace

QuantizedRows quantized_rows(const UnitParameter& p, std::int64_t shard) {
  return {.format = *codes_format(p),
          .capacity = p.rows_per_rank,
          .rows = own_rows(p, shard),
          .row_elements = p.row_elements};
}

std::unique_ptr<RowSupply> quantizing_rows(std::unique_ptr<RowSupply> rows, const QuantizingLoad& inputs) {
  return std::make_unique<QuantizingRows>(std::move(rows), inputs);
}

}  // namespace vramfit
