// Adafactor on CPU ranks, in fp32 with sums in double. With g the gradient, row averages R and column averages C move
// towards the means of g^2 by t^-decay, and u = g / sqrt(max(R C / max(mean R, eps1), eps1^2)) is what parameters lose,
// times max(eps2, rms p) min(lr, 1 / sqrt t) / max(1, rms(u) / clip) (torch/optim/_adafactor.py).
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <limits>

#include "executor/optimizers/adafactor_cuda.h"
#include "executor/optimizers/elements_torch.h"
#include "program/optimizers/adafactor.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least

/// Over rows, in the same order whatever the number of threads.
template <typename OfRow>
double sum_over(const ParameterRows& p, const OfRow& of_row) {
  constexpr std::int64_t kStripes = 64;
  std::array<double, kStripes> sums{};
  const std::int64_t grain = p.rows * p.columns < kGrain ? kStripes : 1;
  at::parallel_for(0, kStripes, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      for (std::int64_t r = p.rows * s / kStripes; r < p.rows * (s + 1) / kStripes; ++r) {
        sums[static_cast<std::size_t>(s)] += of_row(r);
      }
    }
  });
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

/// Of term(0) to term(count - 1).
template <typename Term>
double sum_of(std::int64_t count, const Term& term) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  kernels::on_widest([&] {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[static_cast<std::size_t>(lane)] += term(i + lane);
    }
    for (; i < count; ++i) lanes[0] += term(i);
  });
  double sum = 0;
  for (const double each : lanes) sum += each;
  return sum;
}

double squared(float x) { return static_cast<double>(x) * static_cast<double>(x); }

template <typename Number, typename Gradient>
class Update {
 public:
  Update(OptimizerCall& call, const Gradient* gradients)
      : call_(call),
        all_gradients_(gradients),
        divisor_(number(call.gradient_divisor, 1)),
        row_(call.states[0].defined() ? call.states[0].mutable_data_ptr<float>() : nullptr),
        column_(call.states[1].defined() ? call.states[1].mutable_data_ptr<float>() : nullptr),
        vector_(call.states[2].defined() ? call.states[2].mutable_data_ptr<float>() : nullptr),
        sums_(call.sums[0].mutable_data_ptr<float>()),
        epsilon_(static_cast<float>(adafactor_epsilon(call))) {
    const auto steps = static_cast<double>(number(&call.states[3], 0));
    const OptimizerOptions& o = call.options;
    share_ = static_cast<float>(std::pow(steps, -o["beta2-decay"]));
    rate_ = std::min(o.learning_rate, 1 / std::sqrt(steps));
  }

  void run() {
    std::int64_t index = 0;
    for (const ParameterRows& p : call_.rows) {
      p_ = p;
      parameters_ = call_.parameters.mutable_data_ptr<Number>() + p.offset;
      gradients_ = all_gradients_ + p.offset;
      if (call_.sums.size() < 2) {
        find_sums();
      } else if (call_.finds_sums) {
        call_.sums[1].mutable_data_ptr<float>()[index] = static_cast<float>(find_sum_of_update());
      } else {
        update(call_.sums[1].const_data_ptr<float>()[index]);
      }
      next();
      ++index;
    }
  }

 private:
  bool is_matrix() const { return p_.columns > 1; }
  double elements() const { return static_cast<double>(p_.all_rows) * static_cast<double>(p_.columns); }
  float gradient(std::int64_t i) const { return static_cast<float>(gradients_[i]) / divisor_; }
  float moved(float average, double mean) const { return average + share_ * (static_cast<float>(mean) - average); }
  float& sum_of_squares() const { return sums_[adafactor::sums_of(p_.columns) - 1]; }

  void next() {
    sums_ += adafactor::sums_of(p_.columns);
    if (is_matrix()) {
      row_ += p_.held_rows;
      column_ += p_.columns;
    } else {
      vector_ += p_.held_rows;
    }
  }

  void find_sums() {
    if (is_matrix()) {
      sums_[p_.columns] = static_cast<float>(sum_over(p_, [&](std::int64_t r) {
        const std::int64_t first = r * p_.columns;
        const double sum = sum_of(p_.columns, [&](std::int64_t i) { return squared(gradient(first + i)); });
        row_[r] = moved(row_[r], sum / static_cast<double>(p_.columns));
        return static_cast<double>(row_[r]);
      }));
      sum_columns();
    }
    sum_of_squares() = static_cast<float>(sum_over(p_, [&](std::int64_t r) {
      const Number* const row = parameters_ + r * p_.columns;
      return sum_of(p_.columns, [&](std::int64_t i) { return squared(static_cast<float>(row[i])); });
    }));
  }

  /// A few neighbouring columns at a time, all rows of them.
  void sum_columns() const {
    constexpr std::int64_t kColumns = 64;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (kColumns * std::max<std::int64_t>(1, p_.rows)));
    at::parallel_for(0, ceil_div(p_.columns, kColumns), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t first = block * kColumns, count = std::min(kColumns, p_.columns - first);
        std::array<double, kColumns> sums{};
        kernels::on_widest([&] {
          for (std::int64_t r = 0; r < p_.rows; ++r) {
            for (std::int64_t i = 0; i < count; ++i) {
              sums[static_cast<std::size_t>(i)] += squared(gradient(r * p_.columns + first + i));
            }
          }
        });
        for (std::int64_t i = 0; i < count; ++i)
          sums_[first + i] = static_cast<float>(sums[static_cast<std::size_t>(i)]);
      }
    });
  }

  /// What one parameter of a row loses, before the factor.
  struct RowUpdate {
    const float* variances;  // [columns], which are multiplied by `factor`
    float factor, least;

    float operator()(std::int64_t column, float gradient) const {
      return gradient / std::sqrt(std::max(variances[column] * factor, least));
    }
  };
  RowUpdate update_of_row(std::int64_t r) const {
    const float least = epsilon_ * epsilon_;
    if (!is_matrix()) return {vector_ + r, 1, least};
    const float mean = sums_[p_.columns] / static_cast<float>(p_.all_rows);
    return {column_, row_[r] / std::max(mean, epsilon_), least};
  }

  double find_sum_of_update() {
    for (std::int64_t c = 0; is_matrix() && c < p_.columns; ++c) {
      column_[c] = moved(column_[c], static_cast<double>(sums_[c]) / static_cast<double>(p_.all_rows));
    }
    for (std::int64_t r = 0; !is_matrix() && r < p_.rows; ++r) vector_[r] = moved(vector_[r], squared(gradient(r)));
    return sum_over(p_, [&](std::int64_t r) {
      const RowUpdate update = update_of_row(r);
      const std::int64_t first = r * p_.columns;
      return sum_of(p_.columns, [&](std::int64_t i) { return squared(update(i, gradient(first + i))); });
    });
  }

  void update(float sum_of_update) {
    const OptimizerOptions& o = call_.options;
    const double size = std::max(o["eps2"], std::sqrt(static_cast<double>(sum_of_squares()) / elements()));
    const double excess = std::sqrt(static_cast<double>(sum_of_update) / elements()) / o["update-clip"];
    const auto lost = static_cast<float>(size * rate_ / std::max(1.0, excess));
    const auto kept = static_cast<float>(1 - o.learning_rate * o["weight-decay"]);
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / p_.columns);
    at::parallel_for(0, p_.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const RowUpdate update = update_of_row(r);
        Number* const row = parameters_ + r * p_.columns;
        kernels::on_widest([&] {
          VRAMFIT_INDEPENDENT_ELEMENTS
          for (std::int64_t i = 0; i < p_.columns; ++i) {
            const float change = update(i, gradient(r * p_.columns + i));
            row[i] = static_cast<Number>(static_cast<float>(row[i]) * kept - lost * change);
          }
        });
      }
    });
  }

  OptimizerCall& call_;
  const Gradient* all_gradients_;
  float divisor_, share_ = 0;
  double rate_ = 0;
  // From the parameter that is looked at on.
  float *row_, *column_, *vector_, *sums_;
  float epsilon_;
  ParameterRows p_;
  Number* parameters_ = nullptr;
  const Gradient* gradients_ = nullptr;
};

void adafactor_on_cpu(OptimizerCall& call) {
  if (number(call.found_inf, 0) != 0) {
    if (call.finds_sums) call.sums.back().zero_();
    return;
  }
  if (call.sums.size() == 1) *call.states[3].mutable_data_ptr<float>() += 1.0F;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "adafactor", [&] {
    with_gradients(call, [&](const auto* gradients) {
      Update<scalar_t, std::decay_t<decltype(*gradients)>>(call, gradients).run();
    });
  });
}

}  // namespace

double adafactor_epsilon(const OptimizerCall& call) {
  const double set = call.options["eps1"];
  if (set > 0) return set;
  double epsilon = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "epsilon",
                                  [&] { epsilon = static_cast<double>(std::numeric_limits<scalar_t>::epsilon()); });
  return epsilon;
}

const OptimizerSteps optimizer_steps::adafactor{
    .cpu = adafactor_on_cpu, .cuda = adafactor_on_cuda, .own_cuda = adafactor_by_kernel};

}  // namespace vramfit
