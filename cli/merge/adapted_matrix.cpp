#include "cli/merge/adapted_matrix.h"

#include <algorithm>
#include <cmath>

namespace vramfit {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// (rows, columns) to (columns, rows).
std::vector<float> transposed(const std::vector<float>& matrix, std::int64_t rows) {
  const std::int64_t columns = static_cast<std::int64_t>(matrix.size()) / rows;
  std::vector<float> swapped(matrix.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) swapped[at(c * rows + r)] = matrix[at(r * columns + c)];
  }
  return swapped;
}

}  // namespace

AdapterProduct::AdapterProduct(std::vector<float> a, std::vector<float> b, std::int64_t rank, double scale,
                               MatrixForm form)
    : rank_(rank), scale_(static_cast<float>(scale)) {
  const auto inputs = static_cast<std::int64_t>(a.size()) / rank, outputs = static_cast<std::int64_t>(b.size()) / rank;
  const bool is_swapped = form == MatrixForm::inputs_first;
  rows_ = is_swapped ? inputs : outputs;
  columns_ = is_swapped ? outputs : inputs;
  left_ = is_swapped ? transposed(a, rank) : std::move(b);
  right_ = is_swapped ? transposed(b, outputs) : std::move(a);
  sum_.resize(at(columns_));
}

void AdapterProduct::add_row(std::int64_t row, std::span<float> into) {
  std::ranges::fill(sum_, 0.0F);
  for (std::int64_t r = 0; r < rank_; ++r) {
    const float factor = left_[at(row * rank_ + r)];
    const float* const others = right_.data() + r * columns_;
    for (std::int64_t c = 0; c < columns_; ++c) sum_[at(c)] += factor * others[c];
  }
  for (std::size_t c = 0; c < into.size(); ++c) into[c] += scale_ * sum_[c];
}

OutputLengths::OutputLengths(std::int64_t outputs, MatrixForm form) : form_(form), squares_(at(outputs)) {}

void OutputLengths::count_row(std::int64_t row, std::span<const float> numbers) {
  for (std::size_t c = 0; c < numbers.size(); ++c) {
    squares_[form_ == MatrixForm::outputs_first ? at(row) : c] +=
        static_cast<double>(numbers[c]) * static_cast<double>(numbers[c]);
  }
}

void OutputLengths::set(std::span<const float> magnitudes) {
  for (std::size_t o = 0; o < squares_.size(); ++o) {
    factors_.push_back(magnitudes[o] / static_cast<float>(std::sqrt(squares_[o])));
  }
}

void OutputLengths::scale_row(std::int64_t row, std::span<float> numbers) const {
  for (std::size_t c = 0; c < numbers.size(); ++c) {
    numbers[c] *= factors_[form_ == MatrixForm::outputs_first ? at(row) : c];
  }
}

}  // namespace vramfit
