#include "model_specs/graph.h"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "model_specs/config.h"
#include "model_specs/loss_layout.h"
#include "model_specs/parameters.h"
#include "tests/support/config_file.h"
#include "tests/support/graph_check.h"

namespace vramfit {
namespace {

using testing::small_model;
using testing::small_models;

const Op& find_op(const Segment& segment, const std::string& name) {
  for (const Op& op : segment.ops) {
    if (op.name == name) return op;
  }
  FAIL("no op " << name << " in " << segment.name);
  return segment.ops.front();
}

/// All of its segments: names, values, and what each op reads, makes and uses.
std::string text_of(const Graph& graph) {
  std::string text;
  for (const Segment& segment : graph.segments) {
    text += fmt::format("{} {} {} {} {}\n", segment.name, static_cast<int>(segment.role), segment.input, segment.output,
                        segment.labels);
    for (const Value& value : segment.values) {
      text += fmt::format("  {} {}", value.name, static_cast<int>(value.type));
      for (const Dim& dim : value.shape) text += fmt::format(" {}{}{}", dim.factor, dim.batch, dim.sequence);
    }
    for (const Op& op : segment.ops) {
      text += fmt::format("\n  {} {} {} {} {} {} {}", op.name, op_name(op.kind), fmt::join(op.inputs, ","),
                          fmt::join(op.outputs, ","), op.attributes.chunks, op.attributes.softcap,
                          op.attributes.transposed_weight);
      for (const ParameterUse& use : op.parameters) {
        text += fmt::format(" {}:{}:{}", use.parameter, use.first, use.count);
      }
    }
  }
  return text;
}

const Segment& block(const Graph& graph, int index) { return graph.segments[static_cast<std::size_t>(index) + 1]; }

}  // namespace

TEST_CASE(
    "every graph is a chain in which each value has a shape, a maker before its readers, and each op fits its "
    "parameters") {
  for (const std::string& name : small_models()) {
    for (const std::int64_t chunks : {0, 4}) {
      CAPTURE(name);
      CAPTURE(chunks);
      testing::check_graph(build_graph(small_model(name), {.chunks = chunks}));
    }
  }
}

TEST_CASE("a graph with its loss laid out in another way is the one that is built so") {
  for (const std::string& name : small_models()) {
    CAPTURE(name);
    for (const auto& [before, after] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {4, 0}, {4, 8}, {0, 0}}) {
      CAPTURE(before);
      CAPTURE(after);
      const ModelSpec spec = small_model(name);
      const Graph made = with_loss(build_graph(spec, {.chunks = before}), {.chunks = after});
      CHECK(text_of(made) == text_of(build_graph(spec, {.chunks = after})));
    }
  }
}

TEST_CASE("a graph's parameters are those of the class, by name and shape") {
  for (const std::string& name : small_models()) {
    CAPTURE(name);
    const ModelSpec spec = small_model(name);
    const Graph graph = build_graph(spec, {});
    const std::vector<NamedShape> expected = parameters(spec);
    REQUIRE(graph.parameters.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(graph.parameters[i].name == expected[i].name);
      CHECK(graph.parameters[i].shape == expected[i].shape);
    }
  }
}

TEST_CASE("a mixture of experts is one op of its layer, with the class's parameters and the configuration's scores") {
  const std::string qwen = R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 99,
                               "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 6,
                               "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": true)";
  const std::string mixtral = R"({"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 3,
                                  "vocab_size": 99, "num_attention_heads": 4, "num_key_value_heads": 2,
                                  "intermediate_size": 48)";
  for (const std::string& text : {qwen + R"(, "mlp_only_layers": [1]})", mixtral + "}"}) {
    CAPTURE(text);
    const ModelSpec spec = parse_config(text, "config.json");
    const Graph graph = build_graph(spec, {});
    testing::check_graph(graph);
    CHECK(testing::unused_parameters(graph).empty());
    CHECK(has_experts(graph));
    const std::vector<NamedShape> expected = parameters(spec);
    REQUIRE(graph.parameters.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(graph.parameters[i].name == expected[i].name);
    const Attributes& attributes = find_op(block(graph, 2), "mlp.experts").attributes;
    CHECK(attributes.experts_per_token == 2);
    CHECK(attributes.normalizes_scores);
    CHECK(attributes.keeps_wide_scores == (spec.model_type == "mixtral"));
    CHECK((find_op(block(graph, 1), spec.model_type == "mixtral" ? "mlp.experts" : "mlp.glu").inputs.size() ==
           (spec.model_type == "mixtral" ? 1 : 2)));
  }
  const auto lacks = [](const std::string& text) { return parse_config(text, "config.json").graph_lacks; };
  CHECK(lacks(qwen + R"(, "output_router_logits": true})") == "output_router_logits of qwen3_moe");
  CHECK(lacks(mixtral + R"(, "router_jitter_noise": 0.1})") == "router_jitter_noise of mixtral");
}

TEST_CASE("gpt_oss has sinks in its attention, and biases and transposed matrices of its experts") {
  const auto read = [](const std::string& more) {
    return parse_config(R"({"model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 99,
                            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
                            "intermediate_size": 48, "num_local_experts": 6, "num_experts_per_tok": 2)" +
                            more + "}",
                        "config.json");
  };
  const ModelSpec spec = read(R"(, "rope_scaling": {"rope_type": "yarn", "factor": 32},
                                 "quantization_config": {"quant_method": "mxfp4"})");
  const Graph graph = build_graph(spec, {});
  testing::check_graph(graph);
  CHECK(testing::unused_parameters(graph).empty());
  const Op& attention = find_op(block(graph, 0), "self_attn.attention");
  REQUIRE(attention.parameters.size() == 1);
  const auto name = [&](const ParameterUse& use) {
    return graph.parameters[static_cast<std::size_t>(use.parameter)].name;
  };
  CHECK(name(attention.parameters.front()) == "model.layers.0.self_attn.sinks");
  CHECK(attention.attributes.window == 128);
  CHECK(find_op(block(graph, 1), "self_attn.attention").attributes.window == 0);
  const Op& experts = find_op(block(graph, 2), "mlp.experts");
  CHECK(name(experts.parameters.at(0)) == "model.layers.2.mlp.router.weight");
  CHECK(name(experts.parameters.at(4)) == "model.layers.2.mlp.experts.gate_up_proj_bias");
  CHECK(experts.attributes.transposed_weight);
  CHECK(experts.attributes.limit == 7);
  CHECK(read(R"(, "output_router_logits": true)").graph_lacks == "output_router_logits of gpt_oss");
  CHECK(read(R"(, "attention_dropout": 0.1)").graph_lacks == "attention_dropout of gpt_oss");
  const char* const kNoWindow = "layers without a sliding window of gpt_oss";
  CHECK(read(R"(, "sliding_window": null)").graph_lacks == kNoWindow);
  CHECK(read(R"(, "layer_types": ["full_attention", "full_attention", "full_attention"])").graph_lacks == kNoWindow);
  const ModelSpec fp8 = read(R"(, "quantization_config": {"quant_method": "fp8"})");
  CHECK_THROWS_WITH_AS(build_graph(fp8, {}), "not modelled: training of weights quantized with fp8", NotModelled);
}

TEST_CASE("every output feature of every parameter is used") {
  for (const std::string& name : small_models()) {
    CAPTURE(name);
    CHECK(testing::unused_parameters(build_graph(small_model(name), {})).empty());
  }
}

TEST_CASE("norm weights start as ones, or as zeros where 1 is added, biases as zeros, the rest normal") {
  for (const std::string& name : small_models()) {
    CAPTURE(name);
    const bool plus_one = name.rfind("gemma", 0) == 0;
    for (const Parameter& parameter : build_graph(small_model(name), {}).parameters) {
      CAPTURE(parameter.name);
      Parameter::Init expected = Parameter::Init::normal;
      if (parameter.shape.size() == 1) {
        const bool bias = parameter.name.ends_with("bias");
        expected = bias || plus_one ? Parameter::Init::zeros : Parameter::Init::ones;
      }
      CHECK(parameter.init == expected);
    }
  }
}

TEST_CASE("with chunked loss the head makes the loss itself; with full loss a segment of its own does") {
  for (const std::string& name : small_models()) {
    CAPTURE(name);
    const ModelSpec spec = small_model(name);
    const Graph full = build_graph(spec, {});
    const Graph chunked = build_graph(spec, {.chunks = 8});
    CHECK(full.segments.size() == chunked.segments.size() + 1);
    CHECK(full.segments.back().role == SegmentRole::loss);
    CHECK(full.segments.back().values.front().name == "logits");
    const Op& last = chunked.segments.back().ops.back();
    CHECK(last.kind == OpKind::linear_cross_entropy);
    CHECK(last.attributes.chunks == 8);
    CHECK(last.attributes.softcap == spec.final_logit_softcap);
  }
}

TEST_CASE("a tied head uses the embedding's matrix, an untied one its own") {
  const auto head = [](const std::string& name) {
    const Graph graph = build_graph(small_model(name), {});
    const Segment& segment = graph.segments[graph.segments.size() - 2];
    return graph.parameters[static_cast<std::size_t>(find_op(segment, "lm_head").parameters[0].parameter)].name;
  };
  CHECK(head("llama") == "lm_head.weight");
  CHECK(head("qwen2") == "model.embed_tokens.weight");
  CHECK(head("gpt2") == "transformer.wte.weight");
  CHECK(head("bert") == "bert.embeddings.word_embeddings.weight");
}

TEST_CASE("packed matrices are used by slices that don't overlap") {
  const Graph phi3 = build_graph(small_model("phi3"), {});
  const Segment& layer = block(phi3, 0);
  const ParameterUse q = find_op(layer, "self_attn.q_proj").parameters[0];
  const ParameterUse k = find_op(layer, "self_attn.k_proj").parameters[0];
  const ParameterUse v = find_op(layer, "self_attn.v_proj").parameters[0];
  CHECK(q.parameter == k.parameter);
  CHECK(q.first == 0);
  CHECK(q.count == 64);
  CHECK(k.first == 64);
  CHECK(k.count == 32);
  CHECK(v.first == 96);
  CHECK(v.count == 32);
  const Graph gpt2 = build_graph(small_model("gpt2"), {});
  const Op& value = find_op(block(gpt2, 1), "attn.v_proj");
  CHECK(value.attributes.transposed_weight);
  CHECK(value.parameters[0].first == 128);
  CHECK(value.parameters[1].first == 128);
}

TEST_CASE("gemma2 caps scores and logits, scales by query_pre_attn_scalar and slides every other layer") {
  const Graph graph = build_graph(small_model("gemma2"), {});
  const Attributes& first = find_op(block(graph, 0), "self_attn.attention").attributes;
  CHECK(first.softcap == 5.0);
  CHECK(first.scale == doctest::Approx(0.2041241452));
  CHECK(first.window == 9);
  CHECK(find_op(block(graph, 1), "self_attn.attention").attributes.window == 0);
  CHECK(find_op(graph.segments[graph.segments.size() - 2], "softcap").attributes.softcap == 3.0);
  CHECK(find_op(graph.segments.front(), "embed_tokens").attributes.scale == 8.0);
}

TEST_CASE("granite scales its embedding, every branch and the scores, and divides what makes the logits") {
  const Graph graph = build_graph(small_model("granite"), {});
  const auto factor = [](const Segment& segment, const char* name) { return find_op(segment, name).attributes.scale; };
  CHECK(factor(graph.segments.front(), "embedding_scale") == 3.0);
  CHECK(factor(graph.segments.front(), "embed_tokens") == 1.0);
  CHECK(factor(block(graph, 1), "scale_1") == 0.22);
  CHECK(factor(block(graph, 1), "scale_2") == 0.22);
  CHECK(factor(block(graph, 1), "self_attn.attention") == 0.125);
  CHECK(factor(graph.segments[graph.segments.size() - 2], "logits_scale") == 0.5);
  const Graph chunked = build_graph(small_model("granite"), {.chunks = 2});
  CHECK(factor(chunked.segments.back(), "logits_scale") == 0.5);
}

TEST_CASE("gemma3 rotates sliding layers by one table and full layers by another") {
  const Graph graph = build_graph(small_model("gemma3_text"), {});
  REQUIRE(graph.ropes.size() == 2);
  const auto theta = [&](int layer) {
    const int table = find_op(block(graph, layer), "self_attn.rope_q").attributes.rope_table;
    return graph.ropes[static_cast<std::size_t>(table)].theta;
  };
  CHECK(theta(0) == 10000.0);
  CHECK(theta(5) == 1000000.0);
  CHECK(find_op(block(graph, 0), "self_attn.q_norm").attributes.groups == 4);
  CHECK(find_op(block(graph, 0), "self_attn.k_norm").attributes.groups == 2);
}

TEST_CASE("bert attends both ways, gpt2 and llama only backwards") {
  CHECK_FALSE(find_op(block(build_graph(small_model("bert"), {}), 0), "attention.self.attention").attributes.causal);
  CHECK(find_op(block(build_graph(small_model("gpt2"), {}), 0), "attn.attention").attributes.causal);
  CHECK(build_graph(small_model("bert"), {}).masked_lm);
  CHECK_FALSE(build_graph(small_model("llama"), {}).masked_lm);
}

TEST_CASE("what a graph can't say is refused by name instead of left out") {
  const auto build = [](const std::string& json) { return build_graph(parse_config(json, "config.json"), {}); };
  CHECK_THROWS_WITH_AS(build(R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4}})"),
                       "not modelled: rope scaling yarn", NotModelled);
  CHECK_THROWS_AS(build(R"({"model_type": "llama", "architectures": ["LlamaModel"]})"), NotModelled);
  CHECK_THROWS_AS(build(R"({"model_type": "gemma", "use_bidirectional_attention": true})"), NotModelled);
  CHECK_THROWS_AS(build(R"({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true})"), NotModelled);
  CHECK_THROWS_AS(build(R"({"model_type": "bert", "tie_word_embeddings": false})"), NotModelled);
  CHECK_THROWS_AS(build(R"({"model_type": "llama", "quantization_config": {"quant_method": "awq"}})"), NotModelled);
  CHECK_THROWS_AS(build(R"({"model_type": "llama", "head_dim": 63})"), ModelError);
}

TEST_CASE("a dim resolves to its factor times batch and sequence where it has them") {
  const BatchShape shape{.batch = 2, .sequence = 5};
  CHECK(resolve(fixed(7), shape) == 7);
  CHECK(resolve(kTokens, shape) == 10);
  CHECK(resolve(Dim{3, true, false}, shape) == 6);
  CHECK(element_count(Value{"x", {kTokens, fixed(3)}, ValueType::compute}, shape) == 30);
  CHECK_THROWS_AS(resolve(Dim{std::int64_t{1} << 40, true, true}, {std::int64_t{1} << 20, 1024}), InputError);
}

}  // namespace vramfit
