#include <algorithm>
#include <cmath>

#include "executor/training/clipping_torch.h"
#include "executor/training/tensor_torch.h"
#include "job/cluster/device.h"

namespace vramfit {

namespace {

constexpr double kLeastNorm = 1e-6;  // of clip_grad_norm_

void add_part(Operands& operands, const at::Tensor& part) {
  const ExpectedScope scope(operands.expected(), "clip: unlisted");
  add_squares(part, operands[2], operands[1]);
}

}  // namespace

void Clipping::begin(Operands& operands) {
  squares_ = 0;
  operands[0].zero_();
}

void Clipping::add_parts(Operands& operands) const {
  const at::Tensor all = operands.view(0);
  const std::int64_t times = operands.run().times, elements = all.numel() / times;
  for (std::int64_t part = 0; part < times; ++part) add_part(operands, all.narrow(0, part * elements, elements));
}

void Clipping::add_rest(Operands& operands) {
  const at::Tensor rest = operands.view(0);
  if (rest.is_cuda()) return add_part(operands, rest);
  squares_ += sum_of_squares(rest);
  operands[1].fill_(squares_);
}

void Clipping::scale(Operands& operands) {
  place_.is_cpu() ? scale_on_host(operands[0], operands[1]) : scale_on_device(operands[0], operands[1]);
}

/// Plain arithmetic: on CPU a tensor's sum with a number would allocate a tensor for the number.
void Clipping::scale_on_host(at::Tensor& norm, at::Tensor& divisor) {
  const double scaled_norm = std::sqrt(norm.item<double>()), scale = scaler_.check_on_host(scaled_norm);
  const double own_norm = scaled_norm / scale;
  norm.fill_(own_norm);
  divisor.fill_(scale * (clip_ > 0 ? std::max(1.0, (own_norm + kLeastNorm) / clip_) : 1.0));
}

void Clipping::scale_on_device(at::Tensor& norm, at::Tensor& divisor) {
  norm.sqrt_();
  scaler_.check_on_device(norm);
  if (clip_ > 0) {
    divisor.copy_(norm).add_(kLeastNorm).div_(clip_).clamp_min_(1);
  } else {
    divisor.fill_(1);
  }
  if (scaler_.is_on()) divisor.mul_(*scaler_.scale());
}

}  // namespace vramfit
