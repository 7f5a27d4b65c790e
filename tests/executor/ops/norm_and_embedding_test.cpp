#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "executor/ops/embedding_torch.h"
#include "program/ops/rules.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {
using Tensors = std::vector<at::Tensor>;

kernels::EmbeddingBlocks blocks_of(std::int64_t count, std::int64_t width) {
  return {.rows = {},
          .same_token = at::empty({count * count}),
          .ones = at::ones({1, count}),
          .earlier = at::empty({1, count}),
          .sums = at::empty({count, width})};
}
}  // namespace

TEST_CASE("RMS norm scales each row, or each head of a row, by its own root mean square") {
  for (const std::int64_t groups : {1, 3}) {
    for (const bool plus_one : {false, true}) {
      const std::int64_t rows = 300, width = 70;
      OpCase op{
          .kind = OpKind::rms_norm, .shape = {1, rows}, .outputs = {{{rows, groups * width}}, {{rows, groups}, true}}};
      op.attributes.groups = groups;
      op.attributes.eps = 1e-5;
      op.attributes.weight_plus_one = plus_one;
      op.inputs = {random_tensor({rows, groups * width}, 1)};
      op.parameters = {random_tensor({width}, 2)};
      op.truth = [=](const Tensors& in, const Tensors& p) {
        const at::Tensor x = in[0].view({rows, groups, width});
        const at::Tensor y = x * at::rsqrt(x.pow(2).mean(2, true) + 1e-5) * (plus_one ? p[0] + 1 : p[0]);
        return y.view({rows, groups * width});
      };
      check_op_in_all_ways(op, false);  // the fused backward has no CPU kernel
    }
  }
}

TEST_CASE("a parameter's gradient is the same to the bit with one thread and with three") {
  const std::int64_t rows = 1000, width = 200;
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    OpCase op{
        .kind = OpKind::layer_norm, .shape = {1, rows}, .outputs = {{{rows, width}}, {{rows}, true}, {{rows}, true}}};
    op.inputs = {random_tensor({rows, width}, 1)};
    op.parameters = {random_tensor({width}, 2), random_tensor({width}, 3)};
    op.truth = [=](const Tensors& in, const Tensors& p) { return at::layer_norm(in[0], {width}, p[0], p[1], 0.0); };
    return check_op(op, {.tolerance = 2e-6});
  };
  const int before = at::get_num_threads();
  const Tensors one = run(1), three = run(3);
  at::set_num_threads(before);
  REQUIRE(one.size() == three.size());
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], three[i]));
}

TEST_CASE("layer norm agrees with autograd") {
  const std::int64_t rows = 270, width = 91;
  OpCase op{
      .kind = OpKind::layer_norm, .shape = {1, rows}, .outputs = {{{rows, width}}, {{rows}, true}, {{rows}, true}}};
  op.attributes.eps = 1e-5;
  op.inputs = {random_tensor({rows, width}, 1) + 0.5};
  op.parameters = {random_tensor({width}, 2), random_tensor({width}, 3)};
  op.truth = [=](const Tensors& in, const Tensors& p) { return at::layer_norm(in[0], {width}, p[0], p[1], 1e-5); };
  check_op_in_all_ways(op);
}

TEST_CASE("an embedding's gradient sums the rows of repeated tokens") {
  for (const double scale : {1.0, 4.0}) {
    const std::int64_t tokens = 50, width = 130, vocabulary = 40;
    OpCase op{.kind = OpKind::embedding, .shape = {2, 25}, .outputs = {{{tokens, width}}}};
    op.attributes.scale = scale;
    const at::Tensor ids = random_ids(tokens, vocabulary - 5, 1);
    op.inputs = {ids};
    op.parameters = {random_tensor({vocabulary, width}, 2)};
    op.truth = [=](const Tensors&, const Tensors& p) { return at::embedding(p[0], ids) * scale; };
    op.cancelled = [=](const Tensors&, const at::Tensor& gradient) -> Tensors {
      const at::Tensor none = at::zeros({vocabulary, width}, at::kDouble);
      return {{}, none.index_add(0, ids, gradient.abs() * scale)};
    };
    check_op_in_all_ways(op);
  }
}

TEST_CASE("an embedding's gradient by sums of a fixed order is the ordinary one, and the same to the bit in repeats") {
  const std::int64_t tokens = 2 * kEmbeddingBlockRows + 100, width = 40, vocabulary = 60;
  OpCase op{.kind = OpKind::embedding, .shape = {1, tokens}, .outputs = {{{tokens, width}}}};
  op.attributes.scale = 4;
  const at::Tensor ids = random_ids(tokens, vocabulary - 5, 1);
  op.inputs = {ids};
  op.parameters = {random_tensor({vocabulary, width}, 2)};
  op.truth = [=](const Tensors&, const Tensors& p) { return at::embedding(p[0], ids) * 4.0; };
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-pure"}) {
    for (const GradientMode mode : {GradientMode::fresh, GradientMode::add}) {
      const bool is_fp32 = std::string_view(precision) == "fp32";
      const OpRun run{.precision = precision,
                      .device = DeviceKind::cuda,  // its ATen calls, on CPU tensors
                      .mode = mode,
                      .tolerance = is_fp32 ? 2e-6 : 1.5e-2,
                      .deterministic = true};
      const at::Tensor first = check_op(op, run).back();
      for (int repeat = 0; repeat < 3; ++repeat) CHECK(at::equal(check_op(op, run).back(), first));
    }
  }
}

TEST_CASE("rows that were summed by token may be added to the table in any order") {
  const std::int64_t count = 300, width = 17, vocabulary = 9;
  const at::Tensor ids = random_ids(count, vocabulary, 3), rows = random_tensor({count, width}, 4);
  kernels::EmbeddingBlocks blocks = blocks_of(count, width);
  const at::Tensor sums = kernels::sums_by_token(ids, rows, blocks), table = random_tensor({vocabulary, width}, 5);
  int orders_that_matter = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const at::Tensor order = random_tensor({count}, 10 + seed).argsort();
    const auto added = [&](const at::Tensor& what) {
      return table.index_add(0, ids.index_select(0, order), what.index_select(0, order));
    };
    CHECK(at::equal(added(sums), table.index_add(0, ids, sums)));
    orders_that_matter += at::equal(added(rows), table.index_add(0, ids, rows)) ? 0 : 1;
  }
  CHECK(orders_that_matter > 0);
  CHECK(at::allclose(table.index_add(0, ids, sums), table.index_add(0, ids, rows), 1e-5, 1e-5));
}

TEST_CASE("position and type embeddings are added in place, and their tables sum over sequences and tokens") {
  const std::int64_t batch = 3, sequence = 11, width = 70;
  OpCase op{.kind = OpKind::position_embedding, .shape = {batch, sequence}, .outputs = {{{batch * sequence, width}}}};
  op.inputs = {random_tensor({batch * sequence, width}, 1)};
  op.parameters = {random_tensor({sequence + 4, width}, 2)};
  op.truth = [=](const Tensors& in, const Tensors& p) {
    return (in[0].view({batch, sequence, width}) + p[0].narrow(0, 0, sequence)).view({batch * sequence, width});
  };
  check_op_in_all_ways(op);
  op.kind = OpKind::type_embedding;
  op.parameters = {random_tensor({2, width}, 2)};
  op.truth = [=](const Tensors& in, const Tensors& p) { return in[0] + p[0].select(0, 0); };
  check_op_in_all_ways(op);
}

}  // namespace vramfit::testing
