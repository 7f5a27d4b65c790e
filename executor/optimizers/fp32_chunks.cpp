#include <algorithm>
#include <cstdint>

#include "executor/optimizers/fp32_chunks_torch.h"

namespace vramfit {

namespace {

bool is_fp32(const at::Tensor& flat) { return flat.scalar_type() == at::kFloat; }

/// A call's tensors by element: the gradients, the parameters, and its first states.
std::vector<at::Tensor> tensors_of(const OptimizerCall& call, std::size_t averages) {
  std::vector<at::Tensor> tensors{call.gradients, call.parameters};
  for (std::size_t i = 0; i < averages; ++i) tensors.push_back(call.states[i]);
  return tensors;
}

void update_chunk(OptimizerCall& call, const std::vector<at::Tensor>& chunk, OptimizerStep step) {
  at::Tensor gradients = chunk[0], parameters = chunk[1];
  std::vector<at::Tensor> states = call.states;
  std::copy(chunk.begin() + 2, chunk.end(), states.begin());
  OptimizerCall own{.parameters = parameters,
                    .gradients = gradients,
                    .states = states,
                    .gradient_divisor = call.gradient_divisor,
                    .found_inf = call.found_inf,
                    .options = call.options};
  step(own);
}

}  // namespace

bool is_of_one_dtype(const OptimizerCall& call) {
  const at::ScalarType type = call.parameters.scalar_type();
  return call.states[0].scalar_type() == type && call.gradients.scalar_type() == type;
}

void update_in_fp32(OptimizerCall& call, std::size_t averages, OptimizerStep step) {
  const std::vector<at::Tensor> tensors = tensors_of(call, averages);
  const std::int64_t elements = call.parameters.numel(),
                     most = call.scratch->numel() / (std::ssize(tensors) - std::ranges::count_if(tensors, is_fp32));
  for (std::int64_t first = 0; first < elements; first += most) {
    const std::int64_t count = std::min(most, elements - first);
    std::int64_t used = 0;
    std::vector<at::Tensor> chunk;
    for (const at::Tensor& flat : tensors) {
      const at::Tensor part = flat.narrow(0, first, count);
      chunk.push_back(is_fp32(flat) ? part : call.scratch->narrow(0, used, count).copy_(part));
      if (!is_fp32(flat)) used += most;
    }
    update_chunk(call, chunk, step);
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (!is_fp32(tensors[i])) tensors[i].narrow(0, first, count).copy_(chunk[i]);
    }
  }
}

}  // namespace vramfit
