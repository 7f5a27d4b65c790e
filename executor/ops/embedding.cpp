#include <ATen/ops/eq.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "executor/ops/embedding_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

/// The factor as the compute dtype holds it: models multiply by a scalar of that type.
template <typename T>
float rounded_scale(const OpCall& call) {
  return static_cast<float>(static_cast<T>(static_cast<float>(attributes(call).scale)));
}

void embedding_forward_cpu(OpCall& call) {
  with_type(call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> table(call.parameters[0]), y(call.outputs[0]);
    const auto* ids = data<std::int64_t>(call.inputs[0]);
    const float scale = rounded_scale<T>(call);
    parallel_rows(y.count, y.columns, [=](std::int64_t row) {
      const T* from = table[ids[row]];
      for (std::int64_t c = 0; c < y.columns; ++c) y[row][c] = static_cast<T>(static_cast<float>(from[c]) * scale);
    });
  });
}

/// Rows are added in order, each column block by one thread, so the sum does not depend on the number of threads.
template <typename T, typename G>
void add_rows(OpCall& call, float scale) {
  const Rows<T> dy(*call.output_gradient);
  const Rows<G> table(call.parameter_gradients[0]);
  const auto* ids = data<std::int64_t>(call.inputs[0]);
  const bool add = adds_parameter(call, 0);
  const std::int64_t blocks = (table.columns + kColumnBlock - 1) / kColumnBlock;
  at::parallel_for(0, blocks, 1, [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kColumnBlock, last = std::min(end * kColumnBlock, table.columns);
    if (!add) {
      for (std::int64_t row = 0; row < table.count; ++row) std::fill(table[row] + first, table[row] + last, G{});
    }
    for (std::int64_t row = 0; row < dy.count; ++row) {
      G* to = table[ids[row]];
      for (std::int64_t c = first; c < last; ++c) put(to[c], static_cast<float>(dy[row][c]) * scale, true);
    }
  });
}

void embedding_backward_cpu(OpCall& call) {
  if (!wants_parameter(call, 0)) return;
  with_type(call.output_gradient->scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    with_type(call.parameter_gradients[0].scalar_type(),
              [&](auto gradient_zero) { add_rows<T, decltype(gradient_zero)>(call, rounded_scale<T>(call)); });
  });
}

void embedding_forward_cuda(OpCall& call) {
  at::index_select_out(call.outputs[0], call.parameters[0], 0, call.inputs[0]);
  if (attributes(call).scale != 1) call.outputs[0].mul_(attributes(call).scale);
}

EmbeddingBlocks allocate_blocks(OpCall& call, std::int64_t tokens, std::int64_t width) {
  const Dtype dtype = call.context.precision.reduce;
  const std::int64_t count = std::min(tokens, kEmbeddingBlockRows);
  EmbeddingBlocks blocks;
  if (dtype != call.context.compute()) blocks.rows = call.temporaries.allocate("rows", {count, width}, dtype);
  if (!call.context.deterministic) return blocks;
  blocks.same_token = call.temporaries.allocate("same_token", {count * count}, dtype);
  blocks.ones = call.temporaries.allocate("ones", {1, count}, dtype).fill_(1);
  blocks.earlier = call.temporaries.allocate("earlier", {1, count}, dtype);
  blocks.sums = call.temporaries.allocate("sums", {count, width}, dtype);
  return blocks;
}

void embedding_backward_cuda(OpCall& call) {
  if (!wants_parameter(call, 0)) return;
  at::Tensor& table = call.parameter_gradients[0];
  const at::Tensor &ids = call.inputs[0], &dy = *call.output_gradient;
  const std::int64_t tokens = dy.size(0);
  EmbeddingBlocks blocks = allocate_blocks(call, tokens, dy.size(1));
  if (!adds_parameter(call, 0)) table.zero_();
  const std::int64_t most = blocks.rows.defined() || blocks.sums.defined() ? kEmbeddingBlockRows : tokens;
  for (std::int64_t first = 0; first < tokens; first += most) {
    const std::int64_t count = std::min(most, tokens - first);
    const at::Tensor block_ids = ids.narrow(0, first, count);
    at::Tensor rows = dy.narrow(0, first, count);
    if (blocks.rows.defined()) rows = blocks.rows.narrow(0, 0, count).copy_(rows);
    if (blocks.sums.defined()) rows = sums_by_token(block_ids, rows, blocks);
    table.index_add_(0, block_ids, rows, attributes(call).scale);
  }
}

}  // namespace

at::Tensor sums_by_token(const at::Tensor& ids, const at::Tensor& rows, EmbeddingBlocks& blocks) {
  const std::int64_t count = ids.size(0);
  at::Tensor same = blocks.same_token.narrow(0, 0, count * count).view({count, count});
  at::Tensor earlier = blocks.earlier.narrow(1, 0, count), sums = blocks.sums.narrow(0, 0, count);
  at::eq_out(same, ids.unsqueeze(1), ids.unsqueeze(0)).triu_(1);
  at::mm_out(earlier, blocks.ones.narrow(1, 0, count), same);  // rows of the same token above each row
  at::eq_out(same, ids.unsqueeze(1), ids.unsqueeze(0));
  at::mm_out(sums, same, rows);
  return sums.mul_(earlier.eq_(0).t());
}

const DeviceFunctions rows::embedding{.cpu = {embedding_forward_cpu, embedding_backward_cpu},
                                      .cuda = {embedding_forward_cuda, embedding_backward_cuda}};

}  // namespace vramfit::kernels
