#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "executor/checkpoint/weights.h"
#include "executor/checkpoint/write_torch.h"
#include "executor/training/tensor_torch.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostRead = std::int64_t{1} << 18;  // elements

class WithMagnitudes : public WeightSource {
 public:
  WithMagnitudes(std::unique_ptr<WeightSource> source, const Graph& graph, const std::vector<HeldParameter>& held)
      : source_(std::move(source)), graph_(graph), matrices_(scaled_matrices(graph)) {
    for (const HeldParameter& parameter : held) dtypes_.push_back(parameter.dtype);
  }

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

  /// f(first element of a row, the number of the row) for each of these rows, as they will be held.
  template <typename F>
  void for_rows(const Parameter& matrix, int index, std::pair<std::int64_t, std::int64_t> range, const F& f) {
    const std::int64_t columns = row_element_count(matrix);
    const std::int64_t most = std::max<std::int64_t>(1, kMostRead / std::max<std::int64_t>(columns, 1));
    const Dtype dtype = dtypes_[at(index)];
    for (std::int64_t first = range.first; first < range.second; first += most) {
      const std::int64_t rows = std::min(most, range.second - first), count = checked_mul(rows, columns);
      held_.resize(static_cast<std::size_t>(count * dtype_bytes(dtype).n));
      numbers_.resize(static_cast<std::size_t>(count));
      at::Tensor held = tensor_over(held_.data(), count, scalar_type(dtype));
      source_->read_rows(matrix, first, rows, held);
      tensor_over(numbers_.data(), count, scalar_type(Dtype::f32)).copy_(held);
      for (std::int64_t row = 0; row < rows; ++row) f(numbers_.data() + row * columns, first + row);
    }
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
  std::vector<Dtype> dtypes_;  // by parameter
  std::vector<char> held_;     // rows of a matrix, rounded
  std::vector<float> numbers_;
};

}  // namespace

std::unique_ptr<WeightSource> with_magnitudes(std::unique_ptr<WeightSource> source, const Graph& graph,
                                              const std::vector<HeldParameter>& held) {
  return std::make_unique<WithMagnitudes>(std::move(source), graph, held);
}

}  // namespace vramfit
