#include "executor/optimizers/adafactor_cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>

#include "program/optimizers/adafactor.h"

namespace vramfit {

namespace {

// Places among the scratch's numbers.
constexpr std::int64_t kShare = 0, kKeep = 1, kFactor = 2, kLost = 3, kRate = 4, kExcess = 5, kKept = 6;

/// Sums of squares are products with ones, whose scratch is cuBLAS' workspace: sums over a dim would allocate some that
/// depends on the GPU.
class AdafactorUpdate {
 public:
  explicit AdafactorUpdate(OptimizerCall& call)
      : call_(call), scratch_{.elements = call.parameters.numel(), .longest_row = longest_row(call)} {}

  void run() {
    if (call_.sums.size() == 1) call_.states[3].add_(1);
    begin();
    std::int64_t index = 0;
    for (const ParameterRows& p : call_.rows) {
      p_ = p;
      if (p.rows > 0 || call_.sums.size() > 1) {
        run_parameter(index);
      } else {
        sums().zero_();
      }
      next();
      ++index;
    }
    if (!call_.finds_sums && call_.found_inf != nullptr) call_.states[3].sub_(*call_.found_inf);
  }

 private:
  static std::int64_t longest_row(const OptimizerCall& call) {
    std::int64_t longest = 1;
    for (const ParameterRows& p : call.rows) longest = std::max(longest, p.columns);
    return longest;
  }

  at::Tensor number(std::int64_t place) const { return call_.scratch->narrow(0, place, 1); }
  at::Tensor part(int which, std::int64_t elements) const {
    return call_.scratch->narrow(0, scratch_.part(which), elements);
  }
  at::Tensor ones(std::int64_t count) const { return part(2, count).view({count, 1}); }
  bool is_matrix() const { return p_.columns > 1; }
  double elements() const { return static_cast<double>(p_.all_rows) * static_cast<double>(p_.columns); }
  at::Tensor sums() const { return call_.sums[0].narrow(0, sums_, adafactor::sums_of(p_.columns)); }
  at::Tensor sum_of_squares() const { return sums().narrow(0, adafactor::sums_of(p_.columns) - 1, 1); }

  void begin() {
    const OptimizerOptions& o = call_.options;
    part(2, scratch_.chunk()).fill_(1);
    number(kKeep).fill_(1);
    if (call_.found_inf != nullptr) number(kKeep).sub_(*call_.found_inf);
    const at::Tensor& steps = call_.states[3];
    number(kShare).copy_(steps).pow_(-o["beta2-decay"]).mul_(number(kKeep));
    number(kRate).copy_(steps).rsqrt_().clamp_max_(o.learning_rate);
    number(kKept).copy_(number(kKeep)).mul_(-o.learning_rate * o["weight-decay"]).add_(1);
  }

  void next() {
    sums_ += adafactor::sums_of(p_.columns);
    (is_matrix() ? row_ : vector_) += p_.held_rows;
    if (is_matrix()) column_ += p_.columns;
  }

  void run_parameter(std::int64_t index) {
    const bool finds_first = call_.sums.size() == 1;
    const at::Tensor sum = finds_first ? at::Tensor() : call_.sums[1].narrow(0, index, 1);
    if (!finds_first) begin_update(sum);
    const std::int64_t most = std::max<std::int64_t>(1, scratch_.chunk() / p_.columns);
    for (first_ = 0; first_ < p_.rows; first_ += most) {
      rows_ = std::min(most, p_.rows - first_);
      if (finds_first) {
        find_sums();
      } else if (call_.finds_sums) {
        at::Tensor update = find_update();
        add_squares(update, sum);
      } else {
        update(find_update());
      }
    }
  }

  /// Of the chunk, in fp32; 0 where the step is skipped.
  at::Tensor gradient() const {
    at::Tensor g = chunk(0);
    g.copy_(chunk_of(call_.gradients));
    if (call_.gradient_divisor != nullptr) g.div_(*call_.gradient_divisor);
    if (call_.found_inf != nullptr) g.nan_to_num_(0, 0, 0).mul_(number(kKeep));
    return g;
  }
  at::Tensor chunk(int which) const { return part(which, rows_ * p_.columns).view({rows_, p_.columns}); }
  at::Tensor chunk_of(const at::Tensor& flat) const {
    return flat.narrow(0, p_.offset + first_ * p_.columns, rows_ * p_.columns).view({rows_, p_.columns});
  }
  double before() const { return first_ == 0 ? 0 : 1; }  // how much of a sum was found in earlier chunks
  at::Tensor row_averages() const { return call_.states[0].narrow(0, row_ + first_, rows_); }
  at::Tensor column_averages() const { return call_.states[1].narrow(0, column_, p_.columns); }
  at::Tensor averages() const { return call_.states[2].narrow(0, vector_ + first_, rows_).view({rows_, 1}); }

  /// to[columns] += the sums of the columns of [rows, columns].
  void add_columns(const at::Tensor& matrix, at::Tensor to) const {
    at::Tensor sums = to.view({matrix.size(1), 1});
    at::addmm_out(sums, sums, matrix.t(), ones(matrix.size(0)), before());
  }
  /// to[1] += the sum of the squares, which take the place of the numbers.
  void add_squares(at::Tensor& numbers, const at::Tensor& to) const {
    numbers.mul_(numbers);
    add_columns(numbers.view({numbers.numel(), 1}), to);
  }

  void find_sums() const {
    if (is_matrix()) {
      at::Tensor squares = gradient();
      squares.mul_(squares);
      at::Tensor means = part(3, rows_).view({rows_, 1});
      at::mm_out(means, squares, ones(p_.columns));
      at::Tensor averages = row_averages().view({rows_, 1});
      averages.lerp_(means.div_(static_cast<double>(p_.columns)), number(kShare));
      add_columns(squares, sums().narrow(0, 0, p_.columns));
      add_columns(averages, sums().narrow(0, p_.columns, 1));
    }
    at::Tensor values = chunk(0);
    values.copy_(chunk_of(call_.parameters));
    add_squares(values, sum_of_squares());
  }

  /// What all chunks need: where the second sums are found, averages by columns too; then, the factor of what is lost.
  void begin_update(const at::Tensor& sum) const {
    const OptimizerOptions& o = call_.options;
    if (is_matrix()) {
      const auto rows = static_cast<double>(p_.all_rows);
      number(kFactor)
          .copy_(sums().narrow(0, p_.columns, 1))
          .div_(rows)
          .clamp_min_(adafactor_epsilon(call_))
          .reciprocal_();
      if (call_.finds_sums) {
        at::Tensor means = part(0, p_.columns);
        column_averages().lerp_(means.copy_(sums().narrow(0, 0, p_.columns)).div_(rows), number(kShare));
      }
    }
    if (call_.finds_sums) {
      at::Tensor found = sum;
      found.zero_();
      return;
    }
    number(kExcess).copy_(sum).div_(elements()).sqrt_().div_(o["update-clip"]).clamp_min_(1);
    number(kLost).copy_(sum_of_squares()).div_(elements()).sqrt_().clamp_min_(o["eps2"]);
    number(kLost).mul_(number(kRate)).div_(number(kExcess)).mul_(number(kKeep));
  }

  /// The gradient over the root of its estimated square. Averages of vectors move where the second sums are found.
  at::Tensor find_update() const {
    const double epsilon = adafactor_epsilon(call_);
    at::Tensor g = gradient(), update = chunk(1);
    if (is_matrix()) {
      at::mul_out(update, row_averages().unsqueeze(1), column_averages().unsqueeze(0));
      update.mul_(number(kFactor));
    } else {
      at::Tensor own = averages();
      if (call_.finds_sums) own.lerp_(at::mul_out(update, g, g), number(kShare));
      update.copy_(own);
    }
    return update.clamp_min_(epsilon * epsilon).rsqrt_().mul_(g);
  }

  void update(at::Tensor update) const {
    at::Tensor values = chunk(0), parameters = chunk_of(call_.parameters);
    values.copy_(parameters).mul_(number(kKept)).sub_(update.mul_(number(kLost)));
    parameters.copy_(values);
  }

  OptimizerCall& call_;
  adafactor::Scratch scratch_;
  ParameterRows p_;
  std::int64_t first_ = 0, rows_ = 0;                          // of the chunk
  std::int64_t row_ = 0, column_ = 0, vector_ = 0, sums_ = 0;  // where the parameter's numbers begin
};

}  // namespace

void adafactor_on_cuda(OptimizerCall& call) { AdafactorUpdate(call).run(); }

}  // namespace vramfit
