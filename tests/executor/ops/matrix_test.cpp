#include <ATen/native/CPUBlas.h>
#include <doctest/doctest.h>

#include <tuple>
#include <vector>

#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/product.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Rows, inputs, outputs.
using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

OpCase linear_case(const Sizes& sizes, bool transposed, bool bias) {
  const auto [rows, inputs, outputs] = sizes;
  OpCase op{.kind = OpKind::linear, .shape = {1, rows}, .outputs = {{{rows, outputs}}}};
  op.attributes.transposed_weight = transposed;
  op.inputs = {random_tensor({rows, inputs}, 1)};
  op.parameters = {transposed ? random_tensor({inputs, outputs}, 2) : random_tensor({outputs, inputs}, 2)};
  if (bias) op.parameters.push_back(random_tensor({outputs}, 3));
  op.truth = [=](const Tensors& in, const Tensors& p) {
    const at::Tensor y = at::matmul(in[0], transposed ? p[0] : p[0].t());
    return bias ? y + p[1] : y;
  };
  return op;
}

/// Whole numbers from -3 to 3 in bf16, as a matrix or as its transpose: their products and sums have no rounding.
at::Tensor whole_numbers(std::int64_t rows, std::int64_t columns, bool transposed, std::uint64_t seed) {
  const at::Tensor values = random_ids(rows * columns, 7, seed).sub(3).to(at::kBFloat16).view({rows, columns});
  return transposed ? values.t().contiguous().t() : values;
}

kernels::Matrix matrix_of(const at::Tensor& t) {
  return t.is_contiguous() ? kernels::matrix(t) : kernels::transpose(kernels::matrix(t.t()));
}

void check_whole_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  const ProductShape shape{a.size(0), b.size(1), a.size(1), !a.is_contiguous()};
  const at::Tensor scratch = at::full({product_elements(shape) + 1}, 77, at::kFloat);
  const at::Tensor bias = whole_numbers(1, shape.columns, false, 5).to(type);
  const at::Tensor exact = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  for (const bool add : {false, true}) {
    at::Tensor out = at::full({shape.rows, shape.columns + 3}, 2, type);  // rows with a gap
    kernels::Matrix place = kernels::matrix(out);
    place.columns = shape.columns;
    kernels::multiply(matrix_of(a), matrix_of(b), place,
                      {.add = add, .bias = bias.data_ptr(), .product = scratch.data_ptr<float>()});
    const at::Tensor expected = (exact + bias.to(at::kFloat) + (add ? 2.0 : 0.0)).to(type);
    CHECK(at::equal(out.narrow(1, 0, shape.columns), expected));
    CHECK(out.narrow(1, shape.columns, 3).eq(2).all().item<bool>());
  }
  CHECK(scratch[-1].item<float>() == 77);
}

}  // namespace

TEST_CASE("a product of bf16 factors is exact before its result is rounded, however the factors lie") {
  // The last has factors of which less than all are packed at a time, and sums that take several calls.
  for (const Sizes& sizes :
       {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{65, 64, 63}, Sizes{130, 37, 200}, Sizes{70, 8201, 130}}) {
    const auto [rows, inner, columns] = sizes;
    CAPTURE(rows);
    for (const bool left : {false, true}) {
      for (const bool right : {false, true}) {
        CAPTURE(left);
        CAPTURE(right);
        const at::Tensor a = whole_numbers(rows, inner, left, 1), b = whole_numbers(inner, columns, right, 2);
        check_whole_product(a, b, at::kFloat);
        check_whole_product(a, b, at::kBFloat16);
      }
    }
  }
}

#if defined(__x86_64__)
TEST_CASE("bf16 products go to oneDNN's kernels on CPUs with bf16 instructions, unless they have AMX") {
  const bool has_amx = at::native::cpublas::could_pack(at::kBFloat16);
  CHECK(kernels::has_packed_products() == (__builtin_cpu_supports("avx512bf16") != 0 && !has_amx));
}
#endif

TEST_CASE("a loop gives the same bits for every width of vectors") {
  const at::Tensor x = random_tensor({1000}, 3);
  const float* from = x.data_ptr<float>();
  std::vector<float> wide(1000), narrow(1000);
  const auto fill = [from](float* to) {
    for (int i = 0; i < 1000; ++i) to[i] = kernels::fast_exp(from[i]) * from[i] + 0.3F;
  };
  kernels::on_widest([&] { fill(wide.data()); });
  fill(narrow.data());
  CHECK(wide == narrow);
}

TEST_CASE("a linear reads and writes slices of packed matrices without a copy") {
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{1, 5, 7}, Sizes{64, 33, 1}, Sizes{3, 1, 40}, Sizes{130, 64, 96},
                             Sizes{600, 40, 72}, Sizes{9, 24, 2100}}) {
    CAPTURE(std::get<0>(sizes));
    CAPTURE(std::get<1>(sizes));
    CAPTURE(std::get<2>(sizes));
    for (const bool transposed : {false, true}) {
      for (const bool bias : {false, true}) check_op_in_all_ways(linear_case(sizes, transposed, bias));
    }
  }
}

TEST_CASE("head and cross entropy in chunks give the loss and all gradients in backward") {
  for (const std::int64_t chunks : {1, 3, 8}) {
    for (const double cap : {0.0, 2.0}) {
      const std::int64_t rows = 29, width = 24, vocabulary = 150;
      OpCase op{.kind = OpKind::linear_cross_entropy, .shape = {1, rows}, .outputs = {{{1}, true}}, .loss_scale = 0.3};
      op.attributes.chunks = chunks;
      op.attributes.softcap = cap;
      at::Tensor labels = random_ids(rows, vocabulary, 4);
      labels.narrow(0, 3, 5).fill_(-100);
      op.inputs = {random_tensor({rows, width}, 1), labels};
      op.parameters = {random_tensor({vocabulary, width}, 2) * 0.3, random_tensor({vocabulary}, 3)};
      op.truth = [=](const Tensors& in, const Tensors& p) {
        at::Tensor logits = at::matmul(in[0], p[0].t()) + p[1];
        if (cap != 0) logits = at::tanh(logits / cap) * cap;
        return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) * 0.3).view({1});
      };
      check_op_in_all_ways(op);
      op.parameters.pop_back();
      op.truth = [=](const Tensors& in, const Tensors& p) {
        at::Tensor logits = at::matmul(in[0], p[0].t());
        if (cap != 0) logits = at::tanh(logits / cap) * cap;
        return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) * 0.3).view({1});
      };
      check_op_in_all_ways(op);
    }
  }
}

TEST_CASE("cross entropy leaves out rows without a label and scales by the count of labels") {
  for (const std::int64_t rows : {1, 40, 300}) {
    const std::int64_t vocabulary = 97;
    OpCase op{.kind = OpKind::cross_entropy,
              .shape = {1, rows},
              .outputs = {{{1}, true}, {{rows}, true}},
              .loss_scale = 1.0 / 17};
    at::Tensor labels = random_ids(rows, vocabulary, 4);
    if (rows > 20) labels.narrow(0, 7, 9).fill_(-100);
    op.inputs = {random_tensor({rows, vocabulary}, 1) * 3, labels};
    op.truth = [=](const Tensors& in, const Tensors&) {
      return (at::cross_entropy_loss(in[0], labels, {}, at::Reduction::Sum) / 17).view({1});
    };
    check_op_in_all_ways(op);
  }
}

}  // namespace vramfit::testing
