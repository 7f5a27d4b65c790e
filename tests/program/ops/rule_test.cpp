#include "program/ops/rule.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace vramfit {

namespace {

constexpr std::int64_t kBatch = 2, kSequence = 192, kHidden = 64, kVocabulary = 1000;

/// One op over values of the given widths (inputs, then outputs; all of compute type unless said).
struct OneOp {
  Graph graph;
  Device device;
  Precision precision = precision_named("fp32");
  Attention attention = Attention::automatic;
  Needs needs;
  std::int64_t batch = kBatch, sequence = kSequence;

  OneOp(OpKind kind, const std::vector<std::int64_t>& inputs, const std::vector<std::int64_t>& outputs) {
    device.kind = DeviceKind::cpu;
    Segment segment;
    Op op;
    op.kind = kind;
    for (const std::int64_t width : inputs) {
      op.inputs.push_back(static_cast<int>(segment.values.size()));
      segment.values.push_back({"in", {kTokens, fixed(width)}, ValueType::compute});
      needs.inputs.push_back(true);
    }
    for (const std::int64_t width : outputs) {
      op.outputs.push_back(static_cast<int>(segment.values.size()));
      segment.values.push_back({"out", {kTokens, fixed(width)}, ValueType::compute});
    }
    segment.ops.push_back(op);
    graph.segments.push_back(segment);
  }

  Op& op() { return graph.segments[0].ops[0]; }
  OneOp& parameter(std::vector<std::int64_t> shape, bool trainable = true) {
    op().parameters.push_back({static_cast<int>(graph.parameters.size())});
    graph.parameters.push_back({"p", std::move(shape)});
    needs.parameters.push_back(trainable);
    return *this;
  }
  OneOp& on_cuda(const std::string& name = "bf16-mixed") {
    device = {.kind = DeviceKind::cuda, .name = "H100-80GB", .compute_capability = 90, .sm_count = 132};
    precision = precision_named(name);
    return *this;
  }
  OneOp& frozen() {
    needs.inputs.assign(needs.inputs.size(), false);
    needs.parameters.assign(needs.parameters.size(), false);
    return *this;
  }
  Rule rule() {
    return rule_for({.op = graph.segments[0].ops[0],
                     .segment = graph.segments[0],
                     .graph = graph,
                     .precision = precision,
                     .device = device,
                     .attention = attention,
                     .shape = {batch, sequence}},
                    needs);
  }
};

/// "scores 98304, +dq, -x": what a kernel allocates, in order.
std::string text_of(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    if (!text.empty()) text += ", ";
    switch (step.what) {
      case Step::What::temporary:
        text += step.name + " " + std::to_string(step.bytes.n);
        break;
      case Step::What::release:
        text += "-" + step.name;
        break;
      case Step::What::output:
        text += "output " + std::to_string(step.index);
        break;
      case Step::What::input_gradient:
        text += "gradient " + std::to_string(step.index);
        break;
      case Step::What::parameter_gradient:
        text += "parameter " + std::to_string(step.index);
        break;
    }
  }
  return text;
}

const Ref kIn0{Ref::Of::input, 0}, kIn1{Ref::Of::input, 1}, kIn2{Ref::Of::input, 2};
const Ref kOut0{Ref::Of::output, 0}, kOut1{Ref::Of::output, 1}, kOut2{Ref::Of::output, 2};
using From = GradientSource::From;

OneOp attention_op(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
  OneOp one(OpKind::attention, {heads * head_dim, kv_heads * head_dim, kv_heads * head_dim}, {heads * head_dim, heads});
  one.op().attributes.heads = heads;
  one.op().attributes.kv_heads = kv_heads;
  one.op().attributes.head_dim = head_dim;
  return one;
}

}  // namespace

TEST_CASE("norms keep x and their statistics, and on CPU allocate nothing besides") {
  OneOp rms(OpKind::rms_norm, {kHidden}, {kHidden, 1});
  CHECK(rms.parameter({kHidden}).rule().saved == std::vector{kIn0, kOut1});
  CHECK(rms.rule().backward.empty());
  OneOp layer(OpKind::layer_norm, {kHidden}, {kHidden, 1, 1});
  CHECK(layer.parameter({kHidden}).parameter({kHidden}).rule().saved == std::vector{kIn0, kOut1, kOut2});
  CHECK(layer.rule().forward.empty());
}

TEST_CASE("norms on CUDA are single calls that make their outputs and results themselves") {
  OneOp rms(OpKind::rms_norm, {kHidden}, {kHidden, 1});
  const Rule rule = rms.parameter({kHidden}).on_cuda().rule();
  CHECK(rule.outputs_inside);
  CHECK(text_of(rule.forward) == "output 0, output 1");
  CHECK(text_of(rule.backward) == "input_gradient 49152, weight_gradient 128");
  rms.op().attributes.weight_plus_one = true;
  CHECK(text_of(rms.rule().forward) == "weight_plus_one 128, output 0, output 1");
}

TEST_CASE("an RMS norm over many narrow rows sums the weight's gradient in two passes, as traces of LibTorch show") {
  struct Seen {
    std::int64_t rows, width;
    int capability, sm_count;
    const char* after_gradients;  // as text_of writes them, 16 bits
  };
  // at::_fused_rms_norm_backward under _record_memory_history on phantom cards, torch 2.11.0; in fp32 the same, rows
  // twice as large.
  const std::vector<Seen> seen{
      {65536, 512, 90, 132, ""},
      {81920, 2048, 90, 132, "partial_rows 2097152, weight_gradient_sum 4096"},
      {81920, 512, 90, 132, "partial_rows 2097152, weight_gradient_sum 1024, reduce_buffer 8388608, semaphores 16"},
      {81920, 96, 90, 132, "partial_rows 491520, weight_gradient_sum 192, reduce_buffer 491520, semaphores 8"},
      {131072, 1024, 90, 132, "partial_rows 2097152, weight_gradient_sum 2048, reduce_buffer 8388608, semaphores 32"},
      {65600, 2112, 90, 132, ""},
      {65600, 2080, 90, 132, "partial_rows 2096640, weight_gradient_sum 4160"},
      {80000, 100, 90, 132, "partial_rows 500000, weight_gradient_sum 200, reduce_buffer 512000, semaphores 8"},
      {262144, 64, 90, 132, "partial_rows 1048576, weight_gradient_sum 128, reduce_buffer 1048576, semaphores 4"},
      {81920, 2048, 89, 128, ""},
      {81920, 512, 89, 128, "partial_rows 2097152, weight_gradient_sum 1024, reduce_buffer 8388608, semaphores 16"},
  };
  for (const Seen& row : seen) {
    CAPTURE(row.rows);
    CAPTURE(row.width);
    CAPTURE(row.sm_count);
    OneOp rms(OpKind::rms_norm, {row.width}, {row.width, 1});
    rms.parameter({row.width}).on_cuda();
    rms.device.compute_capability = row.capability;
    rms.device.sm_count = row.sm_count;
    rms.batch = 1;
    rms.sequence = row.rows;
    rms.needs.inputs = {false};
    const std::string gradient = "weight_gradient " + std::to_string(2 * row.width);
    const std::string rest = row.after_gradients;
    CHECK(text_of(rms.rule().backward) == gradient + (rest.empty() ? "" : ", " + rest));
  }
}

TEST_CASE("a linear keeps its input only for the gradient of its weight") {
  OneOp trained(OpKind::linear, {kHidden}, {kHidden});
  CHECK(trained.parameter({kHidden, kHidden}).rule().saved == std::vector{kIn0});
  OneOp fixed_weight(OpKind::linear, {kHidden}, {kHidden});
  CHECK(fixed_weight.parameter({kHidden, kHidden}, false).rule().saved.empty());
}

TEST_CASE("a bias gradient on CUDA takes a row of ones, not a reduce buffer") {
  OneOp op(OpKind::linear, {kHidden}, {kHidden});
  CHECK(text_of(op.parameter({kHidden, kHidden}).parameter({kHidden}).on_cuda().rule().backward) == "ones 768");
}

TEST_CASE("products in 16 bits go through one listed scratch on CPU, of fp32 results or of packed factors") {
  OneOp op(OpKind::linear, {kHidden}, {2 * kHidden});
  op.parameter({2 * kHidden, kHidden}).precision = precision_named("bf16-mixed");
  CHECK(text_of(op.rule().forward) == "product 196608");  // 384 x 128 floats
  // The weight's gradient packs the output's, 384 x 128, and x, 384 x 64, in bf16: more than x's gradient in fp32.
  CHECK(text_of(op.rule().backward) == "product 147456");
  CHECK(text_of(op.frozen().rule().backward).empty());
}

TEST_CASE("rope turns its input in place, keeps nothing, and turns the gradient back in place") {
  OneOp op(OpKind::rope, {kHidden}, {kHidden});
  op.op().attributes.heads = 4;
  op.op().attributes.head_dim = 16;
  op.graph.ropes.emplace_back();
  op.graph.rope_dims = {16};
  CHECK(op.rule().saved.empty());
  CHECK(op.rule().in_place_input == 0);
  CHECK(op.rule().gradients[0].from == From::output_gradient);
  CHECK(op.rule().forward.empty());
  CHECK(text_of(op.on_cuda().rule().backward) == "half 24576");
}

TEST_CASE("attention on CPU scores blocks of 128 queries, and copies one head at a time in 16 bits") {
  OneOp op = attention_op(4, 2, 16);
  CHECK(op.rule().saved == std::vector{kIn0, kIn1, kIn2, kOut0, kOut1});
  CHECK(text_of(op.rule().forward) == "scores 98304");
  CHECK(text_of(op.rule().backward) == "scores 98304, dscores 98304, delta 6144");
  op.precision = precision_named("bf16-mixed");
  CHECK(op.rule().forward.size() == 5);
  CHECK(op.rule().backward.size() == 10);
}

TEST_CASE("flash attention makes its outputs and gradients itself and expands grouped heads in backward") {
  OneOp grouped = attention_op(4, 2, 16);
  const Rule rule = grouped.on_cuda().rule();
  CHECK(rule.outputs_inside);
  CHECK(rule.gradients_inside);
  CHECK(text_of(rule.forward) == "output 0, output 1, rng_state 16, rng_unused 8");
  CHECK(text_of(rule.backward) ==
        "gradient 0, gradient 1, gradient 2, softmax_d 8192, dq_accum 262144, dk_expanded 49152, dv_expanded 49152");
  OneOp whole = attention_op(4, 4, 16);
  CHECK(whole.on_cuda().rule().backward.size() == 5);
}

TEST_CASE("flash attention splits the keys when heads and queries leave SMs idle") {
  OneOp op = attention_op(8, 8, 64);
  op.on_cuda();
  const OpContext context{.op = op.op(),
                          .segment = op.graph.segments[0],
                          .graph = op.graph,
                          .precision = op.precision,
                          .device = op.device,
                          .shape = {1, 1024}};
  // Two splits, 4 MiB of partial outputs: seen in allocation traces of LibTorch 2.11 at these sizes.
  CHECK(text_of(rule_for(context, op.needs).forward) ==
        "output 0, output 1, split_lse 65536, split_out 4194304, rng_state 16, rng_unused 8");
}

TEST_CASE("efficient attention takes fp32 and expands keys and values of grouped heads") {
  OneOp op = attention_op(4, 2, 16);
  CHECK(text_of(op.on_cuda("fp32").rule().forward) == "k_expanded 98304, v_expanded 98304, output 0, output 1");
  op.attention = Attention::flash;
  CHECK_THROWS_AS(op.rule(), NotModelled);
}

TEST_CASE("attention choices that a kernel does not take are refused by name") {
  const auto refusal = [](OneOp& op, Attention choice) {
    op.attention = choice;
    try {
      op.rule();
    } catch (const NotModelled& e) {
      return e.feature_name;
    }
    return std::string("taken");
  };
  OneOp op = attention_op(4, 2, 16);
  op.on_cuda();
  CHECK(refusal(op, Attention::cudnn) == "--attention cudnn");
  CHECK(refusal(op, Attention::flash) == "taken");
  op.device.compute_capability = 75;
  CHECK(refusal(op, Attention::flash) == "--attention flash below compute capability 8.0 (--attention auto is)");
  op.op().attributes.softcap = 50;
  CHECK(refusal(op, Attention::flash) == "--attention flash with a softcap (--attention auto is)");
  CHECK(refusal(op, Attention::efficient) == "--attention efficient with a softcap (--attention auto is)");
  OneOp odd = attention_op(4, 2, 12);
  odd.on_cuda();
  CHECK(refusal(odd, Attention::flash) ==
        "--attention flash with a head_dim above 256 or not a multiple of 8 (--attention auto is)");
  CHECK(refusal(odd, Attention::efficient) ==
        "--attention efficient with heads that are not a multiple of 16 bytes (--attention auto is)");
  OneOp on_cpu = attention_op(4, 2, 16);
  CHECK(refusal(on_cpu, Attention::flash) == "--attention other than auto and math on CPU");
}

TEST_CASE("attention that no fused kernel takes is composed of products over blocks of 256 queries") {
  // 2 groups x 192 queries x 192 keys; 16-bit factors and dk, dv of one sequence, 192 x 2 x 16, besides.
  const std::string forward = "scores 294912, log_probabilities 294912, factors 12, mask 147456";
  const std::string backward = "scores 294912, dscores 294912, factors 12, mask 147456";
  OneOp capped = attention_op(4, 2, 16);
  capped.on_cuda().op().attributes.softcap = 50;
  capped.op().attributes.causal = true;
  CHECK(text_of(capped.rule().forward) == forward + ", rounded 147456, rows 24576");
  CHECK(text_of(capped.rule().backward) ==
        backward + ", rounded 147456, rows 24576, drows 24576, delta 1536, dk32 24576, dv32 24576");
  CHECK_FALSE(capped.rule().outputs_inside);
  CHECK(text_of(capped.on_cuda("fp32").rule().forward) == forward);
  CHECK(text_of(capped.rule().backward) == backward + ", rows 24576, drows 24576, delta 1536");
}

TEST_CASE("fp32 attention over a sequence that is not a multiple of 32 is composed, and a window narrows its blocks") {
  OneOp op = attention_op(4, 2, 16);
  op.on_cuda("fp32").op().attributes.causal = true;
  const auto scores_of = [&](std::int64_t sequence) {
    const OpContext context{.op = op.op(),
                            .segment = op.graph.segments[0],
                            .graph = op.graph,
                            .precision = op.precision,
                            .device = op.device,
                            .shape = {1, sequence}};
    return text_of({rule_for(context, op.needs).forward.at(0)});
  };
  CHECK(scores_of(1024) == "k_expanded 262144");
  CHECK(scores_of(1000) == "scores 2048000");  // 2 x 256 x 1000
  op.op().attributes.window = 100;
  CHECK(scores_of(1000) == "scores 727040");  // 2 x 256 x 355
}

TEST_CASE("a gated activation writes its gradients over what it saved") {
  OneOp op(OpKind::glu, {kHidden, kHidden}, {kHidden});
  const Rule rule = op.rule();
  CHECK(rule.saved == std::vector{kIn0, kIn1});
  CHECK((rule.gradients[0].from == From::saved && rule.gradients[0].index == 0));
  CHECK((rule.gradients[1].from == From::saved && rule.gradients[1].index == 1));
  CHECK(rule.backward.empty());
  CHECK(text_of(op.on_cuda().rule().backward) == "activation_gradient 49152");
}

TEST_CASE("an activation writes its gradient over its saved input") {
  OneOp op(OpKind::activation, {kHidden}, {kHidden});
  CHECK(op.rule().saved == std::vector{kIn0});
  CHECK(op.rule().gradients[0].from == From::saved);
}

TEST_CASE("a residual addition takes the branch's storage, keeps nothing and passes the gradient through to both") {
  OneOp op(OpKind::add, {kHidden, kHidden}, {kHidden});
  CHECK(op.rule().saved.empty());
  CHECK(op.rule().in_place_input == 1);
  CHECK(op.rule().gradients[0].from == From::pass_through);
  CHECK(op.rule().gradients[1].from == From::pass_through);
}

TEST_CASE("a softcap keeps its output alone") {
  OneOp op(OpKind::softcap, {kHidden}, {kHidden});
  CHECK(op.rule().saved == std::vector{kOut0});
  CHECK(op.rule().gradients[0].from == From::output_gradient);
}

TEST_CASE("a scale keeps nothing and works in place, in both directions") {
  OneOp op(OpKind::scale, {kHidden}, {kHidden});
  CHECK(op.rule().saved.empty());
  CHECK(op.rule().in_place_input == 0);
  CHECK(op.rule().gradients[0].from == From::output_gradient);
}

TEST_CASE("embeddings keep ids; positions and types are added in place and pass the gradient through") {
  OneOp table(OpKind::embedding, {1}, {kHidden});
  CHECK(table.parameter({kVocabulary, kHidden}).rule().saved == std::vector{kIn0});
  CHECK(table.rule().backward.empty());
  CHECK(text_of(table.on_cuda().rule().backward) == "rows 98304");
  CHECK(table.on_cuda("bf16-pure").rule().backward.empty());
  for (const OpKind kind : {OpKind::position_embedding, OpKind::type_embedding}) {
    OneOp op(kind, {kHidden}, {kHidden});
    const Rule rule = op.parameter({kSequence, kHidden}).rule();
    CHECK(rule.saved.empty());
    CHECK(rule.in_place_input == 0);
    CHECK(rule.gradients[0].from == From::pass_through);
    CHECK(rule.backward.empty());
  }
}

TEST_CASE("cross entropy writes the gradient of the logits over the logits") {
  OneOp op(OpKind::cross_entropy, {kVocabulary, 1}, {1, 1});
  CHECK(op.rule().saved == std::vector{kIn0, kIn1, kOut1});
  CHECK(op.rule().gradients[0].from == From::saved);
  CHECK(op.rule().forward.empty());
  CHECK(text_of(op.on_cuda().rule().backward) == "rows 512000, label_index 1024, label_mask 512");
}

TEST_CASE("head and cross entropy in chunks hold one chunk of logits, in backward alone when training") {
  OneOp op(OpKind::linear_cross_entropy, {kHidden, 1}, {1});
  op.parameter({kVocabulary, kHidden}).op().attributes.chunks = 4;
  CHECK(op.rule().saved == std::vector{kIn0, kIn1});
  CHECK(op.rule().forward.empty());
  CHECK(text_of(op.rule().backward) == "logits 384000, lse 384");
  op.precision = precision_named("bf16-mixed");
  CHECK(text_of(op.rule().backward) == "logits 192000, lse 384, product 384000");
  CHECK(text_of(op.frozen().rule().forward) == "logits 192000, lse 384, product 384000");
  CHECK(op.rule().backward.empty());
}

TEST_CASE("on CUDA the head's gradient of all chunks is added up in fp32 without a copy in the compute dtype") {
  OneOp op(OpKind::linear_cross_entropy, {kHidden, 1}, {1});
  op.parameter({kVocabulary, kHidden}).on_cuda("bf16-mixed").op().attributes.chunks = 4;
  CHECK(text_of(op.rule().backward).find("weight_gradient") == std::string::npos);
  op.precision.compute = Dtype::f32;
  op.precision.reduce = Dtype::bf16;
  CHECK(text_of(op.rule().backward).find("weight_gradient") != std::string::npos);
}

TEST_CASE("values have the compute dtype, statistics fp32, token ids 8 bytes") {
  const Precision precision = precision_named("bf16-mixed");
  CHECK(value_dtype({"x", {}, ValueType::compute}, precision) == Dtype::bf16);
  CHECK(value_dtype({"lse", {}, ValueType::fp32}, precision) == Dtype::f32);
  CHECK(value_dtype({"ids", {}, ValueType::ids}, precision) == Dtype::i64);
}

}  // namespace vramfit
