// What the elements of an AdamW update share, and the update of one element as torch.optim.AdamW computes it.
#pragma once

#include <cmath>

#include "executor/optimizers/on_both.h"

namespace vramfit {

/// Of OptimizerOptions, those that AdamW has.
struct AdamRates {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

struct AdamNumbers {
  float beta1, beta2, rest1, rest2;  // rest: 1 - beta
  float eps, kept, step_size;        // parameters keep `kept` of themselves and lose step_size times the direction
  float root2;                       // of 1 - beta2^steps

  AdamNumbers() = default;
  /// Of update number `steps`, the first being 1.
  VRAMFIT_ON_BOTH AdamNumbers(const AdamRates& o, double steps)
      : beta1(static_cast<float>(o.beta1)),
        beta2(static_cast<float>(o.beta2)),
        rest1(static_cast<float>(1 - o.beta1)),
        rest2(static_cast<float>(1 - o.beta2)),
        eps(static_cast<float>(o.eps)),
        kept(static_cast<float>(1 - o.learning_rate * o.weight_decay)),
        step_size(static_cast<float>(o.learning_rate / (1 - std::pow(o.beta1, steps)))),
        root2(static_cast<float>(std::sqrt(1 - std::pow(o.beta2, steps)))) {}

  VRAMFIT_ON_BOTH float first(float m, float g) const { return beta1 * m + rest1 * g; }
  VRAMFIT_ON_BOTH float second(float v, float g) const { return beta2 * v + rest2 * g * g; }
  /// The parameter after the update, from averages that have the gradient in them.
  VRAMFIT_ON_BOTH float parameter(float p, float m, float v) const {
    return p * kept - step_size * (m / (std::sqrt(v) / root2 + eps));
  }
};

}  // namespace vramfit
