// What the rules of ops and their work share. The rows are in program/ops/NAME.cpp, their table in
// program/ops/rule.cpp.
#pragma once

#include <algorithm>
#include <string>

#include "program/ops/op_row.h"
#include "program/ops/product.h"

namespace vramfit {

/// On CUDA, calls that each read and write whole tensors, as many elements as output 0 in each pass (executor/ops, the
/// functions of the same name). CPU's own loops are passes of the kind above.
struct Calls {
  double passes = 0;
  std::int64_t launches = 0;
};
OpWork work_of_calls(const OpContext& context, const Needs& needs, const Calls& forward, const Calls& backward);

/// Bytes of an op's inputs, outputs and parameters, each once; of an embedding's table none.
double bytes_of(const OpContext& context);

/// Rows of an embedding's output gradient that CUDA handles at a time.
inline constexpr std::int64_t kEmbeddingBlockRows = 1024;

/// Rows that the CUDA cross entropy handles at a time in fp32: 64 MiB per block with a vocabulary of 128 Ki.
inline constexpr std::int64_t kCrossEntropyBlockRows = 128;

/// Floats of the scratch that the products of one linear on CPU share, in its forward and in its backward; of one
/// linear_cross_entropy over `rows` rows at a time. 0 where all is fp32.
std::int64_t linear_forward_scratch(const OpContext& context);
std::int64_t linear_backward_scratch(const OpContext& context, bool wants_x, bool wants_weight);
std::int64_t chunked_product_elements(const OpContext& context, std::int64_t rows, bool wants_x, bool wants_weight);

/// Blocks of the own kernel of RMS norms' backward, each of which leaves sums in a row of scratch, where it makes the
/// gradients of x and of the weight.
std::int64_t norm_partial_rows(std::int64_t rows, const Device& device);

/// The temporaries of cross entropy's forward and backward over at most `rows` rows, CUDA.
std::vector<Step> cuda_cross_entropy_forward(const OpContext& context, std::int64_t rows, std::int64_t vocabulary);
std::vector<Step> cuda_cross_entropy_backward(const OpContext& context, std::int64_t rows, std::int64_t vocabulary);
/// Those of them that hold labels, of backward.
std::vector<Step> cuda_label_blocks(const OpContext& context, std::int64_t rows);
/// Their work, over all rows.
Work cuda_cross_entropy_forward_work(const OpContext& context, std::int64_t rows, std::int64_t vocabulary);
Work cuda_cross_entropy_backward_work(const OpContext& context, std::int64_t rows, std::int64_t vocabulary);

// Shorthands of the rules.

inline Ref input(int index) { return {Ref::Of::input, index}; }
inline Ref output(int index) { return {Ref::Of::output, index}; }

inline Step output_step(int index) { return {.what = Step::What::output, .index = index, .name = {}, .bytes = {}}; }
inline Step input_gradient_step(int index) {
  return {.what = Step::What::input_gradient, .index = index, .name = {}, .bytes = {}};
}
inline Step temporary(std::string name, std::int64_t elements, Dtype dtype) {
  return {.what = Step::What::temporary, .index = -1, .name = std::move(name), .bytes = elements * dtype_bytes(dtype)};
}
inline Step release(std::string name) {
  return {.what = Step::What::release, .index = -1, .name = std::move(name), .bytes = {}};
}

inline bool is_cuda(const OpContext& context) { return context.device.kind == DeviceKind::cuda; }
/// Whether an op that has a kernel of the engine's own (OpRow::has_own_kernel) uses it.
inline bool uses_own_kernel(const OpContext& context) {
  return is_cuda(context) && context.kernels == KernelSource::vramfit;
}

/// Whether parameter `index` exists and needs a gradient.
inline bool wants_parameter(const Needs& needs, std::size_t index) {
  return index < needs.parameters.size() && needs.parameters[index];
}
inline bool wants_input(const Needs& needs, std::size_t index) {
  return index < needs.inputs.size() && needs.inputs[index];
}

}  // namespace vramfit
