// One matrix of a model with its adapter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vramfit {

/// How a matrix is stored: (outputs, inputs) as torch's Linear, or (inputs, outputs) as gpt2's Conv1D.
enum class MatrixForm : std::uint8_t { outputs_first, inputs_first };

/// The scaled product of an adapter, row by row in the form of the matrix.
class AdapterProduct {
 public:
  /// `a`: (rank, inputs); `b`: (outputs, rank); both row by row.
  AdapterProduct(std::vector<float> a, std::vector<float> b, std::int64_t rank, double scale, MatrixForm form);

  std::int64_t columns() const { return columns_; }
  /// Adds row `row` of s B A to `into`, columns() elements. Products are added up in fp32, in the order of ranks.
  void add_row(std::int64_t row, std::span<float> into);

 private:
  std::int64_t rank_, rows_, columns_;
  float scale_;
  std::vector<float> left_, right_;  // (rows, rank) and (rank, columns)
  std::vector<float> sum_;           // of one row
};

/// Of a matrix with its adapter, how long its outputs' rows are, and what makes them as long as DoRA's magnitudes say.
class OutputLengths {
 public:
  OutputLengths(std::int64_t outputs, MatrixForm form);

  /// Counts a row of the sum; each is counted once.
  void count_row(std::int64_t row, std::span<const float> numbers);
  /// Once all are counted: the lengths to be.
  void set(std::span<const float> magnitudes);
  void scale_row(std::int64_t row, std::span<float> numbers) const;

 private:
  MatrixForm form_;
  std::vector<double> squares_;
  std::vector<float> factors_;
};

}  // namespace vramfit
