#include "program/stages/adapters.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/conflict.h"
#include "base/error.h"
#include "program/stages/tape.h"
#include "program/stages/trainable.h"
#include "tests/support/config_file.h"
#include "tests/support/graph_check.h"

namespace vramfit {

namespace {

Job lora_job(const std::vector<std::string>& targets = {}) {
  Job job;
  job.method = Method::lora;
  job.lora = {.rank = 4, .alpha = 6, .dropout = 0, .targets = targets, .rank_stabilized = false};
  return job;
}

Job dora_job(const std::vector<std::string>& targets = {}) {
  Job job = lora_job(targets);
  job.lora.has_magnitudes = true;
  return job;
}

/// Linears of the first layer whose magnitude is multiplied in place.
std::vector<std::string> scaled_in_place(const std::string& family) {
  Job job = dora_job();
  job.micro_batch = 1;
  job.sequence = 16;
  const Graph graph = training_graph(testing::small_model(family), job);
  Device device;
  device.kind = DeviceKind::cpu;
  const Segment& layer = graph.segments.at(1);
  const SegmentTape tape = make_tapes(tape_inputs(graph, job, device)).at(1);
  std::vector<std::string> linears;
  for (std::size_t i = 0; i < layer.ops.size(); ++i) {
    if (layer.ops[i].kind != OpKind::magnitude || tape.rules[i].in_place_input < 0) continue;
    const std::string_view module = module_of(layer.ops[i].name);
    linears.emplace_back(module.substr(module.rfind('.') + 1));
  }
  return linears;
}

std::vector<std::string> adapters_of(const Graph& graph) {
  std::vector<std::string> names;
  const std::vector<bool> adapters = adapter_parameters(graph);
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i]) names.push_back(graph.parameters[i].name);
  }
  return names;
}

const Parameter& parameter_named(const Graph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.parameters, name, &Parameter::name);
  REQUIRE(found != graph.parameters.end());
  return *found;
}

std::string error_of(const std::string& target) {
  try {
    training_graph(testing::small_model("llama"), lora_job({target}));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a graph with adapters is whole in every family, with full and with chunked loss") {
  for (const char* const family :
       {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "gpt2", "granite", "bert"}) {
    CAPTURE(family);
    testing::check_graph(training_graph(testing::small_model(family), dora_job()));
    Job job = lora_job();
    const Graph full = training_graph(testing::small_model(family), job);
    job.loss = ChunkedLoss{2};
    const Graph chunked = training_graph(testing::small_model(family), job);
    for (const Graph* const graph : {&full, &chunked}) testing::check_graph(*graph);
    CHECK_FALSE(adapters_of(full).empty());
    CHECK(adapters_of(chunked) == adapters_of(full));
    const std::vector<std::string> names = adapters_of(full);
    CHECK(std::ranges::none_of(names, [](const std::string& name) {
      return name.find("embed") != std::string::npos || name.find("lm_head") != std::string::npos ||
             name.find("decoder") != std::string::npos;
    }));
  }
}

TEST_CASE(
    "every linear but the output layer gets A of as many columns as its input and B of as many rows as its output") {
  const Graph graph = training_graph(testing::small_model("llama"), lora_job());
  CHECK(adapters_of(graph).size() == std::size_t{3} * 7 * 2);  // layers, linears, A and B
  const std::string module = "model.layers.0.mlp.down_proj";
  const Parameter& weight = parameter_named(graph, module + ".weight");
  const Parameter& a = parameter_named(graph, module + ".lora_A.weight");
  const Parameter& b = parameter_named(graph, module + ".lora_B.weight");
  CHECK(a.shape == std::vector<std::int64_t>{4, weight.shape[1]});
  CHECK(b.shape == std::vector<std::int64_t>{weight.shape[0], 4});
  CHECK(a.init == Parameter::Init::uniform);
  CHECK(b.init == Parameter::Init::zeros);
}

TEST_CASE("products that are packed into one matrix share its adapter") {
  const Graph graph = training_graph(testing::small_model("phi3"), lora_job({"layers.0.self_attn.qkv_proj"}));
  CHECK(adapters_of(graph) == std::vector<std::string>{"model.layers.0.self_attn.qkv_proj.lora_A.weight",
                                                       "model.layers.0.self_attn.qkv_proj.lora_B.weight"});
}

TEST_CASE("targets are names of modules or their ends, and one that nothing has is an error with those there are") {
  const Graph graph = training_graph(testing::small_model("llama"), lora_job({"q_proj", "layers.1.mlp.*"}));
  for (const std::string& name : adapters_of(graph)) {
    CAPTURE(name);
    CHECK((name.find("q_proj") != std::string::npos || name.find("layers.1.mlp.") != std::string::npos));
  }
  CHECK(error_of("q_porj").find("--lora-targets q_porj: no linear has such a name; they end in down_proj") == 0);
  CHECK(error_of("lm_head").find("the output layer have no adapters") != std::string::npos);
  CHECK(error_of("\x1b[31m").find('\x1b') == std::string::npos);
}

TEST_CASE("with DoRA an adapter has a magnitude for each output of its matrix, however many linears use that") {
  const Graph graph = training_graph(testing::small_model("gpt2"), dora_job({"c_attn"}));
  const std::vector<std::string> names = adapters_of(graph);
  CHECK(names.size() % 3 == 0);
  const Parameter& weight = parameter_named(graph, "transformer.h.0.attn.c_attn.weight");
  const Parameter& magnitudes = parameter_named(graph, "transformer.h.0.attn.c_attn.lora_magnitude_vector");
  CHECK(magnitudes.shape == std::vector<std::int64_t>{weight.shape[1]});
  CHECK(magnitudes.init == Parameter::Init::norms);
  CHECK(adapted_module(magnitudes.name) == "transformer.h.0.attn.c_attn");
  CHECK(adapted_module("transformer.h.0.attn.c_attn.lora_A.weight") == "transformer.h.0.attn.c_attn");
  const std::vector<ScaledMatrix> scaled = scaled_matrices(graph);
  REQUIRE_FALSE(scaled.empty());
  CHECK(graph.parameters[static_cast<std::size_t>(scaled[0].magnitudes)].name == magnitudes.name);
  CHECK(graph.parameters[static_cast<std::size_t>(scaled[0].matrix)].name == weight.name);
  CHECK(scaled[0].is_transposed);
}

TEST_CASE("a magnitude is multiplied in place unless the next op writes over the result") {
  CHECK(scaled_in_place("llama") == std::vector<std::string>{"v_proj", "gate_proj", "up_proj"});
  CHECK(scaled_in_place("qwen3") == std::vector<std::string>{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"});
}

TEST_CASE("with DoRA and dropout the engine has one op for adapter and magnitude, and PyTorch's runtimes have two") {
  Job job = dora_job();
  const auto kinds = [&](const Graph& graph, OpKind kind) {
    std::ptrdiff_t count = 0;
    for (const Segment& segment : graph.segments) count += std::ranges::count(segment.ops, kind, &Op::kind);
    return count;
  };
  for (const char* const family : {"llama", "gpt2", "phi3", "bert"}) {
    CAPTURE(family);
    job.lora.dropout = 0;
    const Graph kept = training_graph(testing::small_model(family), job);
    job.lora.dropout = 0.1;
    const Graph dropped = training_graph(testing::small_model(family), job);
    testing::check_graph(dropped);
    CHECK(kinds(dropped, OpKind::dropped_dora) == kinds(kept, OpKind::magnitude));
    CHECK(kinds(dropped, OpKind::lora) + kinds(dropped, OpKind::magnitude) == 0);
    CHECK(adapters_of(dropped) == adapters_of(kept));
    CHECK(trainable_parameters(dropped, job) == adapter_parameters(dropped));
    const std::vector<ScaledMatrix> scaled = scaled_matrices(dropped), before = scaled_matrices(kept);
    REQUIRE(scaled.size() == before.size());
    CHECK(scaled[0].matrix == before[0].matrix);
    CHECK(scaled[0].magnitudes == before[0].magnitudes);
    CHECK(scaled[0].is_transposed == before[0].is_transposed);
  }
  job.runtime = Runtime::pytorch;
  CHECK(kinds(training_graph(testing::small_model("llama"), job), OpKind::dropped_dora) == 0);
}

TEST_CASE("with DoRA a matrix that has an adapter, and its bias, are frozen") {
  Job job = dora_job({"q_proj"});
  const Graph graph = training_graph(testing::small_model("qwen2"), job);
  CHECK(trainable_parameters(graph, job) == adapter_parameters(graph));
  job.freeze = {"*q_proj*", "*embed*"};
  CHECK_NOTHROW(trainable_parameters(graph, job));
  for (const char* frozen : {"*q_proj.weight", "*q_proj.bias", "*k_proj*"}) {
    job.freeze = {frozen};
    CHECK_THROWS_WITH_AS(trainable_parameters(graph, job), doctest::Contains("--dora on: --freeze leaves"), Conflict);
  }
}

TEST_CASE("adapters alone are trained, unless --freeze says what of the model is frozen") {
  Job job = lora_job();
  const Graph graph = training_graph(testing::small_model("llama"), job);
  CHECK(trainable_parameters(graph, job) == adapter_parameters(graph));
  job.freeze = {"layers:0-2", "*embed*"};
  const std::vector<bool> trainable = trainable_parameters(graph, job);
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    const std::string& name = graph.parameters[i].name;
    CAPTURE(name);
    const bool is_frozen = name.find("lora_") == std::string::npos &&
                           (name.find("layers.") != std::string::npos || name.find("embed") != std::string::npos);
    CHECK(trainable[i] == !is_frozen);
  }
}

TEST_CASE("frozen parameters have the compute dtype and adapters the storage dtype") {
  const Job job = lora_job();
  const Graph graph = training_graph(testing::small_model("llama"), job);
  for (const HeldParameter& held : held_parameters(graph, job)) {
    CHECK(held.dtype == (held.trainable ? Dtype::f32 : Dtype::bf16));
  }
}

TEST_CASE("adapters are scaled by alpha / rank, or by alpha / sqrt(rank)") {
  Lora lora{.rank = 16, .alpha = 8, .dropout = 0, .targets = {}, .rank_stabilized = false};
  CHECK(adapter_scale(lora) == 0.5);
  lora.rank_stabilized = true;
  CHECK(adapter_scale(lora) == 2);
}

}  // namespace vramfit
