#include "cli/fake_weights/checkpoint.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json/json_value.h"
#include "cli/flags/model.h"
#include "model_specs/hub/safetensors.h"
#include "model_specs/parameters.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

TEST_CASE("a checkpoint of zeros holds every parameter and takes no room on the disk") {
  const testing::TemporaryDirectory folder;
  const ModelSpec spec = read_model("meta-llama/Llama-3.1-8B");
  const std::string path = folder.path().string() + "/model.safetensors";
  write_sparse(path, weights_header(spec, Dtype::bf16));
  const Checkpoint found = list_tensors(path);
  CHECK(element_count(found.tensors) == parameter_count(spec));
  CHECK(found.tensors.front().dtype == "BF16");
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK(status.st_size > 16'000'000'000);
  CHECK(status.st_blocks * 512 < 200'000);
  CHECK_THROWS_WITH_AS(write_sparse(path, {}), doctest::Contains("can't be written"), FaultError);
}

TEST_CASE("the configuration is the model's, without what the catalog adds") {
  const ModelSpec spec = read_model("gpt2");
  const JsonValue config = parse_json(config_text(spec, Dtype::f32), "config.json");
  const auto has = [&](const char* key) { return std::ranges::find(config.keys, key) != config.keys.end(); };
  CHECK((has("model_type") && has("n_embd") && has("torch_dtype")));
  CHECK((!has("id") && !has("aliases") && !has("published")));
}

TEST_CASE("the tokenizer has a token for each byte and one that ends a text") {
  ModelSpec spec = read_model("gpt2");
  const JsonValue tokenizer = parse_json(tokenizer_text(spec), "tokenizer.json");
  const auto model = std::ranges::find(tokenizer.keys, "model") - tokenizer.keys.begin();
  const JsonValue& inner = tokenizer.items[static_cast<std::size_t>(model)];
  const auto vocabulary = std::ranges::find(inner.keys, "vocab") - inner.keys.begin();
  CHECK(inner.items[static_cast<std::size_t>(vocabulary)].keys.size() == 256);
  spec.vocab_size = 256;
  CHECK_THROWS_WITH_AS(tokenizer_text(spec), doctest::Contains("bytes need 257"), ModelError);
}

}  // namespace
}  // namespace vramfit
