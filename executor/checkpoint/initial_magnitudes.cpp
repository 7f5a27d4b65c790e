#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/text/units.h"
#include "executor/checkpoint/weights.h"
#include "executor/checkpoint/write_torch.h"
#include "executor/ops/quantized_torch.h"
#include "executor/training/tensor_torch.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostRead = std::int64_t{1} << 18;  // elements

class WithMagnitudes : public WeightSource {
 public:
  WithMagnitudes(std::unique_ptr<WeightSource> source, const Graph& graph, HeldMatrices held)
      : source_(std::move(source)), graph_(graph), matrices_(scaled_matrices(graph)), held_(std::move(held)) {}

  void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) override {
    if (!source_->lacks(parameter)) return source_->read_rows(parameter, first_row, rows, into);
    const auto found = std::ranges::find_if(
        matrices_, [&](const ScaledMatrix& m) { return &graph_.parameters[at(m.magnitudes)] == &parameter; });
    const Parameter& matrix = graph_.parameters[at(found->matrix)];
    const std::vector<float> norms = found->is_transposed ? norms_of_columns(matrix, found->matrix, first_row, rows)
                                                          : norms_of_rows(matrix, found->matrix, first_row, rows);
    write_numbers(into, 0, std::span<const float>(norms));
  }

  std::string description() const override { return source_->description(); }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  /// f(first element of a row, the number of the row) for each of these rows, as they will be computed with.
  template <typename F>
  void for_rows(const Parameter& matrix, int index, std::pair<std::int64_t, std::int64_t> range, const F& f) {
    const HeldParameter& held = held_.parameters[at(index)];
    if (held.quantization != nullptr) return for_quantized_rows(matrix, *held.quantization, range, f);
    const std::int64_t columns = row_element_count(matrix), most = rows_at_once(columns, 1);
    for (std::int64_t first = range.first; first < range.second; first += most) {
      const std::int64_t rows = std::min(most, range.second - first);
      at::Tensor rounded = room(rounded_, checked_mul(rows, columns), held.dtype);
      source_->read_rows(matrix, first, rows, rounded);
      for_rows_of(rounded, first, columns, f);
    }
  }

  /// Of a matrix in codes: each rank quantizes rows of its own, whose blocks begin with them.
  template <typename F>
  void for_quantized_rows(const Parameter& matrix, const Quantization& format,
                          std::pair<std::int64_t, std::int64_t> range, const F& f) {
    const std::int64_t columns = row_element_count(matrix), step = whole_blocks(format, columns);
    const float mean = mean_of_scales(matrix, format);
    for_parts(matrix, range, rows_at_once(columns, step), [&](std::int64_t first, std::int64_t rows) {
      const QuantizedRows part{.format = format, .capacity = rows, .rows = rows, .row_elements = columns};
      quantize(matrix, part, first).finish(mean);
      at::Tensor whole = room(rounded_, part.elements(), held_.compute);
      dequantize_on_cpu(part, tensor_over(codes_.data(), static_cast<std::int64_t>(codes_.size()), at::kByte), whole);
      for_rows_of(whole, first, columns, [&](const float* row, std::int64_t number) {
        if (number >= range.first && number < range.second) f(row, number);
      });
    });
  }

  template <typename F>
  void for_rows_of(const at::Tensor& values, std::int64_t first, std::int64_t columns, const F& f) {
    at::Tensor numbers = room(numbers_, values.numel(), Dtype::f32).copy_(values);
    const float* const begin = numbers.const_data_ptr<float>();
    for (std::int64_t row = 0; row < values.numel() / columns; ++row) f(begin + row * columns, first + row);
  }

  /// f(first row, rows) for the parts of at most `most` rows that have all of `range`. `most`: whole blocks.
  template <typename F>
  void for_parts(const Parameter& matrix, std::pair<std::int64_t, std::int64_t> range, std::int64_t most, const F& f) {
    const std::int64_t share = ceil_div(matrix.shape[0], held_.shards);
    for (std::int64_t first = range.first; first < range.second;) {
      const std::int64_t begin = first / share * share;  // of the rank's rows that has it
      const std::int64_t part = begin + (first - begin) / most * most;
      const std::int64_t end = std::min({part + most, begin + share, matrix.shape[0]});
      f(part, end - part);
      first = end;
    }
  }

  /// Codes of these rows; scales of 8 bits follow by finish().
  RowsQuantizer quantize(const Parameter& matrix, const QuantizedRows& part, std::int64_t first) {
    codes_.assign(static_cast<std::size_t>(quantized_bytes(part.format, part.capacity, part.row_elements).n), 0);
    at::Tensor values = room(numbers_, part.elements(), Dtype::f32);
    source_->read_rows(matrix, first, part.rows, values);
    RowsQuantizer quantizer(part, codes_);
    quantizer.add({values.const_data_ptr<float>(), static_cast<std::size_t>(part.elements())});
    return quantizer;
  }

  /// Of the whole matrix, which is read for that where scales have one.
  float mean_of_scales(const Parameter& matrix, const Quantization& format) {
    if (format.scale_block == 0) return 0;
    const std::int64_t columns = row_element_count(matrix);
    double sum = 0;
    std::int64_t scales = 0;
    const std::int64_t most = rows_at_once(columns, whole_blocks(format, columns));
    for_parts(matrix, {0, matrix.shape[0]}, most, [&](std::int64_t first, std::int64_t rows) {
      const QuantizedRows part{.format = format, .capacity = rows, .rows = rows, .row_elements = columns};
      sum += quantize(matrix, part, first).sum_of_scales();
      scales += scales_of(format, part.elements(), columns);
    });
    return scales == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(scales));
  }

  /// The fewest rows that end where a block does, of scales too.
  static std::int64_t whole_blocks(const Quantization& format, std::int64_t columns) {
    if (format.block == 0) return 1;
    const std::int64_t elements = format.block * std::max<std::int64_t>(format.scale_block, 1);
    return elements / std::gcd(elements, columns);
  }

  static std::int64_t rows_at_once(std::int64_t columns, std::int64_t step) {
    return std::max<std::int64_t>(1, kMostRead / std::max<std::int64_t>(checked_mul(columns, step), 1)) * step;
  }

  /// The first numbers of a buffer, which grows as needed.
  static at::Tensor room(std::vector<char>& buffer, std::int64_t count, Dtype dtype) {
    buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(count * dtype_bytes(dtype).n)));
    return tensor_over(buffer.data(), count, scalar_type(dtype));
  }

  std::vector<float> norms_of_rows(const Parameter& matrix, int index, std::int64_t first, std::int64_t count) {
    std::vector<float> norms(static_cast<std::size_t>(count));
    const std::int64_t columns = row_element_count(matrix);
    for_rows(matrix, index, {first, first + count}, [&](const float* row, std::int64_t number) {
      double squares = 0;
      for (std::int64_t c = 0; c < columns; ++c) squares += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      norms[static_cast<std::size_t>(number - first)] = static_cast<float>(std::sqrt(squares));
    });
    return norms;
  }

  std::vector<float> norms_of_columns(const Parameter& matrix, int index, std::int64_t first, std::int64_t count) {
    std::vector<double> squares(static_cast<std::size_t>(count));
    for_rows(matrix, index, {0, matrix.shape[0]}, [&](const float* row, std::int64_t /*number*/) {
      for (std::int64_t c = 0; c < count; ++c) {
        const auto value = static_cast<double>(row[first + c]);
        squares[static_cast<std::size_t>(c)] += value * value;
      }
    });
    std::vector<float> norms;
    for (const double sum : squares) norms.push_back(static_cast<float>(std::sqrt(sum)));
    return norms;
  }

  std::unique_ptr<WeightSource> source_;
  const Graph& graph_;
  std::vector<ScaledMatrix> matrices_;
  HeldMatrices held_;
  std::vector<char> rounded_;  // rows of a matrix as they are computed with
  std::vector<char> numbers_;  // rows in fp32
  std::vector<std::uint8_t> codes_;
};

}  // namespace

std::unique_ptr<WeightSource> with_magnitudes(std::unique_ptr<WeightSource> source, const Graph& graph,
                                              HeldMatrices held) {
  return std::make_unique<WithMagnitudes>(std::move(source), graph, std::move(held));
}

}  // namespace vramfit
