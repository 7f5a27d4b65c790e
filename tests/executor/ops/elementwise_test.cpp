#include <doctest/doctest.h>

#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor act(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::silu:
      return at::silu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::gelu_erf:
      return at::gelu(x);
    case Activation::relu:
      return at::relu(x);
  }
  return x;
}

constexpr Activation kActivations[] = {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu};

OpCase elementwise(OpKind kind, std::int64_t rows, std::int64_t columns, int inputs) {
  OpCase op{.kind = kind, .shape = {1, rows}, .outputs = {{{rows, columns}}}};
  for (int i = 0; i < inputs; ++i) {
    op.inputs.push_back(random_tensor({rows, columns}, static_cast<std::uint64_t>(i) + 1) * 2);
  }
  return op;
}

}  // namespace

TEST_CASE("an activation and its derivative agree with autograd, over the saved input too") {
  for (const Activation activation : kActivations) {
    OpCase op = elementwise(OpKind::activation, 37, 65, 1);
    op.attributes.activation = activation;
    op.truth = [=](const Tensors& in, const Tensors&) { return act(activation, in[0]); };
    check_op_in_all_ways(op);
  }
}

TEST_CASE("a gated activation writes both gradients, over what it saved too") {
  for (const Activation activation : kActivations) {
    OpCase op = elementwise(OpKind::glu, 23, 129, 2);
    op.attributes.activation = activation;
    op.truth = [=](const Tensors& in, const Tensors&) { return act(activation, in[0]) * in[1]; };
    check_op_in_all_ways(op);
  }
}

TEST_CASE("a residual addition gives its gradient to both inputs") {
  OpCase op = elementwise(OpKind::add, 300, 67, 2);
  op.truth = [](const Tensors& in, const Tensors&) { return in[0] + in[1]; };
  check_op_in_all_ways(op);
}

TEST_CASE("a softcap's derivative is taken from its output") {
  OpCase op = elementwise(OpKind::softcap, 31, 77, 1);
  op.attributes.softcap = 3;
  op.truth = [](const Tensors& in, const Tensors&) { return at::tanh(in[0] / 3) * 3; };
  check_op_in_all_ways(op);
}

TEST_CASE("a scale and its gradient are written in place") {
  OpCase op = elementwise(OpKind::scale, 31, 77, 1);
  op.attributes.scale = 0.22;
  op.truth = [](const Tensors& in, const Tensors&) { return in[0] * 0.22; };
  check_op_in_all_ways(op);
}

TEST_CASE("rotary embedding turns halves of each head by the position's angle, all or a part of its dims") {
  struct Table {
    std::int64_t half;
    at::ScalarType type;
  };
  for (const Table table : {Table{4, at::kFloat}, Table{3, at::kFloat}, Table{4, at::kBFloat16}, Table{3, at::kHalf}}) {
    const std::int64_t half = table.half;
    const std::int64_t batch = 2, sequence = 9, heads = 3, dim = 8;
    OpCase op = elementwise(OpKind::rope, batch * sequence, heads * dim, 1);
    op.shape = {batch, sequence};
    op.attributes.heads = heads;
    op.attributes.head_dim = dim;
    const at::Tensor angle = random_tensor({sequence, half}, 3);
    op.rope_cos = {at::cos(angle).to(table.type)};
    op.rope_sin = {at::sin(angle).to(table.type)};
    op.truth = [=, tables = std::pair(op.rope_cos[0], op.rope_sin[0])](const Tensors& in, const Tensors&) {
      const at::Tensor x = in[0].view({batch, sequence, heads, dim});
      const at::Tensor cos = tables.first.to(at::kDouble).unsqueeze(1),
                       sin = tables.second.to(at::kDouble).unsqueeze(1);
      const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
      return at::cat({a * cos - b * sin, b * cos + a * sin, x.narrow(3, 2 * half, dim - 2 * half)}, 3)
          .reshape({batch * sequence, heads * dim});
    };
    check_op_in_all_ways(op);
  }
}

}  // namespace vramfit::testing
