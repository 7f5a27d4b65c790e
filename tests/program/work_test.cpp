// What ops do, from which seconds are made.
#include <doctest/doctest.h>

#include <algorithm>

#include "job/cluster/device.h"
#include "program/ops/rule.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

const Device kCard{.kind = DeviceKind::cuda, .name = "card", .compute_capability = 80, .sm_count = 108};

// The first op of a kind in the small llama: 3 x 64 tokens in bf16.
struct Found {
  Graph graph = build_graph(testing::small_model("llama"), {});
  Precision precision = precision_named("bf16-mixed");
  const Op* op = nullptr;
  const Segment* segment = nullptr;

  explicit Found(OpKind kind) {
    for (const Segment& s : graph.segments) {
      const auto found = std::ranges::find(s.ops, kind, &Op::kind);
      if (op != nullptr || found == s.ops.end()) continue;
      op = &*found;
      segment = &s;
    }
  }
  OpWork work(bool of_inputs, bool of_parameters, Attention attention = Attention::automatic) const {
    const OpContext context{.op = *op,
                            .segment = *segment,
                            .graph = graph,
                            .precision = precision,
                            .device = kCard,
                            .attention = attention,
                            .shape = {3, 64}};
    const std::vector<bool> inputs(op->inputs.size(), of_inputs), parameters(op->parameters.size(), of_parameters);
    const std::vector<bool> none_of_inputs(inputs.size()), none_of_parameters(parameters.size());
    return rule_for(context, {inputs, parameters, none_of_inputs, none_of_parameters}).work;
  }
};

}  // namespace

TEST_CASE("a linear is one product, and in backward one for each gradient that is needed") {
  const Found linear(OpKind::linear);
  const Parameter& weight = linear.graph.parameters[static_cast<std::size_t>(linear.op->parameters.front().parameter)];
  const auto rows = static_cast<double>(weight.shape[0]), columns = static_cast<double>(weight.shape[1]);
  const OpWork both = linear.work(true, true);
  REQUIRE(both.forward.size() == 1);
  CHECK(both.forward[0].unit == Work::Unit::product);
  CHECK(both.forward[0].dtype == Dtype::bf16);
  CHECK(both.forward[0].flops == 2 * 3 * 64 * rows * columns);
  CHECK(both.forward[0].bytes == 2 * (3 * 64 * (rows + columns) + rows * columns));
  CHECK(both.backward.size() == 2);
  CHECK(linear.work(true, false).backward.size() == 1);
  CHECK(linear.work(false, true).backward.size() == 1);
  CHECK(linear.work(false, false).backward.empty());
}

TEST_CASE(
    "casts to FP8 read a transposed factor by sectors, and the output's gradient has one scale for both products") {
  Found linear(OpKind::linear);
  linear.precision = precision_named("fp8");
  const Parameter& weight = linear.graph.parameters[static_cast<std::size_t>(linear.op->parameters.front().parameter)];
  const double outputs = static_cast<double>(weight.shape[0]), inputs = static_cast<double>(weight.shape[1]);
  const double tokens = 3 * 64, x = tokens * inputs, y = tokens * outputs, w = inputs * outputs;
  const auto bytes = [](const std::vector<Work>& list, Work::Unit unit) {
    double sum = 0;
    for (const Work& work : list) sum += work.unit == unit ? work.bytes : 0;
    return sum;
  };
  const OpWork both = linear.work(true, true);
  CHECK(bytes(both.forward, Work::Unit::none) == 2 * (x + w));
  CHECK(bytes(both.forward, Work::Unit::eager_cast) == 3 * (x + w));
  CHECK(bytes(both.backward, Work::Unit::none) == 2 * (y + w + x));
  CHECK(bytes(both.backward, Work::Unit::eager_cast) == 3 * y + 33 * (w + y + x));
  CHECK(bytes(linear.work(false, true).backward, Work::Unit::none) == 2 * (y + x));
}

TEST_CASE(
    "fused attention is two products in forward and five in backward; composed of calls it also passes over scores") {
  const Found attention(OpKind::attention);
  const Attributes& a = attention.op->attributes;
  const auto heads = static_cast<double>(a.heads), width = heads * static_cast<double>(a.head_dim);
  const double flops = 4 * 3 * 64 * 32 * width;  // of 64 keys, half are attended to
  const OpWork fused = attention.work(true, false);
  CHECK(fused.forward[0].unit == Work::Unit::attention);
  CHECK(fused.forward[0].flops == flops);
  CHECK(fused.backward[0].flops == 2.5 * flops);
  const OpWork composed = attention.work(true, false, Attention::math);
  REQUIRE(composed.forward.size() == 2);
  CHECK(composed.forward[0].unit == Work::Unit::product);
  CHECK(composed.forward[1].bytes == 9 * 4 * 3 * heads * 64 * 32);
  CHECK(composed.forward[1].launches == 9 * 3 * a.heads / a.kv_heads);  // one block of queries a group
  CHECK(composed.backward.size() == 4);
}

TEST_CASE("ops bound by memory read and write what their calls do, and nothing in backward if all is frozen") {
  const Found norm(OpKind::rms_norm);
  const double pass = 2 * 3 * 64 * static_cast<double>(testing::small_model("llama").hidden_size);  // of 3 x 64 tokens
  CHECK(norm.work(true, true).forward[0].flops == 0);
  CHECK(norm.work(true, true).forward[0].bytes == 2 * pass);
  CHECK(norm.work(true, true).backward[0].bytes == 8 * pass);
  CHECK(norm.work(false, false).backward.empty());
  // Logits in bf16: copied to fp32, passed over there, and in backward copied back. 192 rows are two blocks.
  const Found loss(OpKind::cross_entropy);
  const double logits = 3 * 64 * static_cast<double>(testing::small_model("llama").vocab_size);
  const OpWork work = loss.work(true, false);
  CHECK(work.forward[0].bytes == (2 + 4 + 8) * logits);
  CHECK(work.forward[0].launches == 2 * 5);
  CHECK(work.backward[0].bytes == (2 + 4 + 3 * 8 + 4 + 2) * logits);
}

}  // namespace vramfit
