#include "executor/checkpoint/weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/numbers/stored_numbers.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::raw_bytes;
using testing::safetensors_bytes;
using testing::TemporaryDirectory;

const Parameter kProjection{"model.layers.0.mlp.up_proj.weight", {1001, 333}};

at::Tensor read(WeightSource& source, const Parameter& parameter, std::int64_t first, std::int64_t rows,
                at::ScalarType type = at::kFloat) {
  at::Tensor into = at::full({rows * row_element_count(parameter)}, 77.0, type);
  source.read_rows(parameter, first, rows, into);
  return into;
}

Graph graph_of(std::vector<Parameter> parameters) {
  Graph graph;
  graph.parameters = std::move(parameters);
  return graph;
}

std::string message_of(const std::string& path, const Graph& graph) {
  try {
    safetensors_weights(path, graph);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("random weights are normal with deviation 0.02, or ones or zeros as the parameter says") {
  const auto source = random_weights(3);
  const at::Tensor drawn = read(*source, kProjection, 0, 1001);
  CHECK(std::abs(drawn.mean().item<double>()) < 2e-4);
  CHECK(drawn.std().item<double>() == doctest::Approx(0.02).epsilon(0.01));
  CHECK((drawn.abs() < 0.02).to(at::kFloat).mean().item<double>() == doctest::Approx(0.6827).epsilon(0.01));
  CHECK((drawn.abs() < 0.04).to(at::kFloat).mean().item<double>() == doctest::Approx(0.9545).epsilon(0.01));
  CHECK(read(*source, {"n", {5}, Parameter::Init::ones}, 0, 5).equal(at::ones({5})));
  CHECK(read(*source, {"n", {5}, Parameter::Init::zeros}, 0, 5).equal(at::zeros({5})));
  CHECK(source->description() == "random (seed 3)");
}

TEST_CASE("any split of rows and any number of threads gives the same random weights") {
  const auto source = random_weights(3);
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const at::Tensor whole = read(*source, kProjection, 0, 1001);
  at::set_num_threads(1);
  for (const std::int64_t ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    std::vector<at::Tensor> shards;
    const std::int64_t each = (1001 + ranks - 1) / ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t first = rank * each;
      shards.push_back(read(*source, kProjection, first, std::min(each, 1001 - first)));
    }
    CHECK(at::cat(shards).equal(whole));
  }
  at::set_num_threads(threads);
}

TEST_CASE("another seed or another name gives other random weights, uncorrelated") {
  const at::Tensor a = read(*random_weights(3), kProjection, 0, 1001);
  const at::Tensor b = read(*random_weights(4), kProjection, 0, 1001);
  const at::Tensor c = read(*random_weights(3), {"model.layers.1.mlp.up_proj.weight", kProjection.shape}, 0, 1001);
  const auto correlation = [](const at::Tensor& x, const at::Tensor& y) {
    return std::abs((x * y).mean().item<double>()) / (0.02 * 0.02);
  };
  CHECK(correlation(a, b) < 0.01);
  CHECK(correlation(a, c) < 0.01);
  CHECK(correlation(a.slice(0, 0, -1), a.slice(0, 1)) < 0.01);
}

TEST_CASE("random weights of a narrow type are those of fp32, rounded to nearest") {
  const at::Tensor wide = read(*random_weights(3), kProjection, 5, 100);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    CHECK(read(*random_weights(3), kProjection, 5, 100, type).equal(wide.to(type)));
  }
}

TEST_CASE("rows of a safetensors file are converted to the tensor's type, whatever the file's") {
  const TemporaryDirectory directory;
  const at::Tensor values = at::randn({6, 5});
  const std::vector<std::pair<std::string, at::ScalarType>> types{
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}};
  for (const auto& stored : types) {
    const at::Tensor typed = values.to(stored.second).contiguous();
    const std::string data(static_cast<const char*>(typed.data_ptr()), static_cast<std::size_t>(typed.nbytes()));
    // An odd number of bytes before it: the data of a file may lie at any alignment.
    const std::string path = directory.write(
        "model.safetensors", safetensors_bytes({{"odd", "U8", "[1]", "x"}, {"w", stored.first, "[6, 5]", data}}));
    const Parameter parameter{"w", {6, 5}};
    const auto source = safetensors_weights(path, graph_of({parameter}));
    for (const auto& wanted : types) {
      CAPTURE(stored.first);
      CAPTURE(wanted.first);
      const at::Tensor rows = read(*source, parameter, 2, 3, wanted.second);
      CHECK(rows.equal(typed.slice(0, 2, 5).flatten().to(wanted.second)));
    }
  }
}

TEST_CASE("every 16-bit pattern is widened as LibTorch does") {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  for (const auto& [type, scalar] :
       {std::pair(StoredFloat::bf16, at::kBFloat16), std::pair(StoredFloat::f16, at::kHalf)}) {
    std::vector<float> widened(patterns.size());
    widen_numbers({type, reinterpret_cast<const char*>(patterns.data()), 65536}, 0, widened);
    const at::Tensor ours = at::from_blob(widened.data(), {65536}, at::kFloat);
    const at::Tensor theirs = at::from_blob(patterns.data(), {65536}, scalar).to(at::kFloat);
    CHECK(at::equal(at::nan_to_num(ours, 12345.0), at::nan_to_num(theirs, 12345.0)));
    CHECK(at::equal(ours.isnan(), theirs.isnan()));
  }
}

TEST_CASE("a checkpoint saved with another prefix, an old spelling or a tied head is accepted") {
  const TemporaryDirectory directory;
  const auto file_with = [&](const std::string& name) {
    return directory.write("model.safetensors",
                           safetensors_bytes({{name, "F32", "[2]", raw_bytes<float>({1.0F, 2.0F})}}));
  };
  const std::vector<std::pair<std::string, std::string>> accepted{
      {"model.layers.0.w", "model.layers.0.w"},
      {"model.layers.0.w", "layers.0.w"},
      {"transformer.h.0.w", "h.0.w"},
      {"model.layers.0.w", "language_model.model.layers.0.w"},
      {"model.layers.0.w", "model.language_model.layers.0.w"},
      {"model.layers.0.w", "_orig_mod.model.layers.0.w"},
      {"bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"},
      {"bert.embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"},
      {"cls.predictions.bias", "cls.predictions.decoder.bias"},
      {"model.embed_tokens.weight", "lm_head.weight"}};
  for (const auto& pair : accepted) {
    CAPTURE(pair.first);
    CAPTURE(pair.second);
    CHECK(message_of(file_with(pair.second), graph_of({{pair.first, {2}}})).empty());
  }
  const Graph untied = graph_of({{"model.embed_tokens.weight", {2}}, {"lm_head.weight", {2}}});
  CHECK(mentions(message_of(file_with("lm_head.weight"), untied),
                 "1 of 2 tensors are missing: model.embed_tokens.weight"));
}

TEST_CASE("missing tensors, other shapes and unreadable types are named") {
  const TemporaryDirectory directory;
  const std::string path =
      directory.write("model.safetensors",
                      safetensors_bytes({{"a", "F32", "[2]", raw_bytes<float>({1, 2})}, {"q", "I8", "[2]", "xy"}}));
  const std::string missing =
      message_of(path, graph_of({{"a", {2}}, {"m1", {2}}, {"m2", {2}}, {"m3", {2}}, {"m4", {2}}}));
  CHECK(mentions(missing, "4 of 5 tensors are missing: m1, m2, m3, ..."));
  CHECK(mentions(message_of(path, graph_of({{"a", {3}}})), "tensor a is [2], the model needs [3]"));
  CHECK(mentions(message_of(path, graph_of({{"q", {2}}})), "stored as I8"));
}

TEST_CASE("weights in several shards are found through their index") {
  const TemporaryDirectory directory;
  directory.write("model-1.safetensors", safetensors_bytes({{"a", "F32", "[2]", raw_bytes<float>({1, 2})}}));
  directory.write("model-2.safetensors", safetensors_bytes({{"b", "F32", "[2]", raw_bytes<float>({3, 4})}}));
  directory.write("model.safetensors.index.json",
                  R"({"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  const Graph graph = graph_of({{"a", {2}}, {"b", {2}}});
  const auto source = safetensors_weights(directory.path(), graph);
  CHECK(read(*source, graph.parameters[0], 1, 1).item<float>() == 2.0F);
  CHECK(read(*source, graph.parameters[1], 0, 1).item<float>() == 3.0F);
}

TEST_CASE("rows that are converted a block at a time are those of one conversion") {
  const TemporaryDirectory directory;
  const at::Tensor stored = at::randn({300, 4001}).to(at::kBFloat16);
  const std::string data(static_cast<const char*>(stored.data_ptr()), static_cast<std::size_t>(stored.nbytes()));
  const Parameter parameter{"w", {300, 4001}};
  const std::string path =
      directory.write("model.safetensors", safetensors_bytes({{"w", "BF16", "[300, 4001]", data}}));
  const auto source = safetensors_weights(path, graph_of({parameter}));
  CHECK(read(*source, parameter, 0, 300).equal(stored.flatten().to(at::kFloat)));
  CHECK(read(*source, parameter, 7, 290).equal(stored.slice(0, 7, 297).flatten().to(at::kFloat)));
  CHECK(read(*source, parameter, 7, 290, at::kBFloat16).equal(stored.slice(0, 7, 297).flatten()));
  CHECK_THROWS_WITH_AS(read(*source, parameter, 299, 2), doctest::Contains("has no rows 299 to 301"), FaultError);
}

TEST_CASE("a weights file that becomes shorter while it is in use is an error, not a signal") {
  const TemporaryDirectory directory;
  const std::string data(std::size_t{4} << 20, 'x');
  const std::string path = directory.write("m.safetensors", safetensors_bytes({{"a", "F32", "[1048576]", data}}));
  const Parameter parameter{"a", {1048576}};
  const auto source = safetensors_weights(path, graph_of({parameter}));
  std::filesystem::resize_file(path, std::size_t{2} << 20);
  CHECK_THROWS_WITH_AS(read(*source, parameter, 0, 1048576), doctest::Contains("became shorter while in use"),
                       ModelError);
  CHECK_THROWS_WITH_AS(read(*source, parameter, 0, 1048576, at::kBFloat16),
                       doctest::Contains("became shorter while in use"), ModelError);
}

TEST_CASE("an index counts on no tensor but where it says, and on none of another shape") {
  const TemporaryDirectory directory;
  const auto file = [](const char* name, const char* shape) {
    return safetensors_bytes({{name, "F32", shape, raw_bytes<float>({1, 2})}});
  };
  directory.write("one.safetensors", file("a", "[2]"));
  directory.write("two.safetensors", file("b", "[1, 2]"));
  const Graph graph = graph_of({{"a", {2}}, {"b", {2}}});
  const auto message = [&](const std::string& map) {
    directory.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    return message_of(directory.path(), graph);
  };
  CHECK(mentions(message(R"("a":"one.safetensors","b":"two.safetensors")"), "tensor b is [1, 2], the model needs [2]"));
  CHECK(mentions(message(R"("a":"one.safetensors","b":"one.safetensors")"), "\"b\" isn't in one.safetensors"));
  CHECK(mentions(message(R"("a":"one.safetensors")"), "1 of 2 tensors are missing: b"));
  CHECK(mentions(message(R"("a":"one.safetensors","b":"three.safetensors")"), "No such file"));
  CHECK(mentions(message(R"("a":"one.safetensors","b":"../two.safetensors")"), "isn't the plain name"));
}

TEST_CASE("a weights file cut short after it was listed is an error") {
  const TemporaryDirectory directory;
  const std::string whole = safetensors_bytes({{"a", "F32", "[2]", raw_bytes<float>({1, 2})}});
  CHECK(
      mentions(message_of(directory.write("m.safetensors", whole.substr(0, whole.size() - 1)), graph_of({{"a", {2}}})),
               "truncated"));
}

}  // namespace
}  // namespace vramfit
