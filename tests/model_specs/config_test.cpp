#include "model_specs/config.h"

#include <doctest/doctest.h>

#include <ctime>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "model_specs/parameters.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

/// A llama configuration with `more` members.
std::string llama(const std::string& more) {
  return R"({"model_type": "llama")" + (more.empty() ? "" : ", " + more) + "}";
}

ModelSpec read(const std::string& json) { return parse_config(json, "config.json"); }

/// Far more than any refusal takes, however slow the machine, and far less than reading it all would.
constexpr double kMostSeconds = 30;

/// Of this process, so that a busy machine counts for nothing.
double processor_seconds(const std::function<void()>& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("a size that isn't a positive integer in range is refused with its key named") {
  for (const char* key : {"hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "max_position_embeddings", "head_dim"}) {
    for (const char* value : {"9223372036854775808", "9223372036854775807", "18446744073709551616", "-1", "0", "1e30",
                              "4096.0", "\"4096\"", "true", "[4096]", "{}", "-9223372036854775808"}) {
      CAPTURE(key);
      CAPTURE(value);
      CHECK_THROWS_WITH_AS(read(llama(fmt::format(R"("{}": {})", key, value))),
                           doctest::Contains(fmt::format("config.json: {}: ", key).c_str()), ModelError);
    }
  }
}

TEST_CASE("null is refused where transformers refuses it, and means the default where it allows it") {
  CHECK_THROWS_AS(read(llama(R"("hidden_size": null)")), ModelError);
  CHECK_THROWS_AS(read(llama(R"("rope_theta": null)")), ModelError);
  CHECK(read(llama(R"("head_dim": null)")).head_dim == 128);
  CHECK(read(llama(R"("num_key_value_heads": null)")).num_key_value_heads == 32);
}

TEST_CASE("mistral's omitted num_key_value_heads is 8, but null means one for each head") {
  CHECK(read(R"({"model_type": "mistral"})").num_key_value_heads == 8);
  CHECK(read(R"({"model_type": "mistral", "num_key_value_heads": null})").num_key_value_heads == 32);
}

TEST_CASE("sizes whose product overflows 64 bits are refused, never wrapped") {
  const std::string big = "1073741824";
  CHECK_THROWS_WITH_AS(
      read(llama(fmt::format(R"("hidden_size": {0}, "vocab_size": {0}, "num_attention_heads": 1)", big))),
      doctest::Contains("overflows 64 bits"), ModelError);
  CHECK_THROWS_WITH_AS(
      read(llama(fmt::format(R"("num_attention_heads": {0}, "head_dim": {0}, "num_key_value_heads": {0})", big))),
      doctest::Contains("overflows 64 bits"), ModelError);
}

TEST_CASE("heads that don't divide are refused unless head_dim is given") {
  CHECK_THROWS_AS(read(llama(R"("num_attention_heads": 33)")), ModelError);
  CHECK_THROWS_AS(read(llama(R"("num_attention_heads": 8, "num_key_value_heads": 16)")), ModelError);
  CHECK_THROWS_AS(read(llama(R"("num_attention_heads": 8, "num_key_value_heads": 3)")), ModelError);
  CHECK(read(llama(R"("num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 64)")).head_dim == 64);
}

TEST_CASE("a billion layers are refused at once") {
  const double took = processor_seconds([] {
    CHECK_THROWS_WITH_AS(read(llama(R"("num_hidden_layers": 1000000000)")), doctest::Contains("num_hidden_layers"),
                         ModelError);
    CHECK(parameter_count(read(llama(R"("num_hidden_layers": 512)"))) > 0);
  });
  CHECK(took < kMostSeconds);
}

TEST_CASE("JSON that is deep, huge, broken or followed by junk is refused at once") {
  const auto refuse = [](const std::string& json) {
    const double took = processor_seconds([&] { CHECK_THROWS_AS(read(json), ModelError); });
    CHECK(took < kMostSeconds);
  };
  refuse(std::string(1000000, '['));
  refuse(R"({"a":)" + std::string(1000000, '['));
  refuse(llama(R"("x": ")" + std::string(std::size_t{5} << 20, 'x') + '"'));
  refuse(llama(std::string(R"("x": ")") + "\xff\xfe" + char(34)));
  refuse("\xEF\xBB\xBF" + llama(""));
  refuse(llama(R"("rope_theta": NaN)"));
  refuse(llama(R"("rope_theta": Infinity)"));
  refuse(llama(R"("rope_theta": 1e999)"));
  refuse(llama("") + "x");
  refuse(llama("") + llama(""));
  refuse("");
  refuse("[]");
  refuse(R"({"model_type": "llama")");
  refuse(std::string("{\0}", 3));
}

TEST_CASE("a key that appears twice is refused") {
  CHECK_THROWS_WITH_AS(read(llama(R"("hidden_size": 64, "hidden_size": 128)")), doctest::Contains("twice"), ModelError);
}

TEST_CASE("an unknown model_type gets a suggestion, a missing one an explanation") {
  CHECK_THROWS_WITH_AS(read(R"({"model_type": "lama"})"), doctest::Contains("did you mean \"llama\"?"), ModelError);
  CHECK_THROWS_WITH_AS(read("{}"), doctest::Contains("config.json: model_type: missing"), ModelError);
  CHECK_THROWS_AS(read(R"({"model_type": 7})"), ModelError);
}

TEST_CASE("an unknown class is refused, and none means the family's language model") {
  CHECK_THROWS_WITH_AS(read(llama(R"("architectures": ["LlamaForCasualLM"])")),
                       doctest::Contains("did you mean \"LlamaForCausalLM\"?"), ModelError);
  CHECK(read(llama("")).architecture == "LlamaForCausalLM");
  CHECK(read(llama(R"("architectures": null)")).architecture == "LlamaForCausalLM");
  CHECK(read(R"({"model_type": "gpt2"})").architecture == "GPT2LMHeadModel");
}

TEST_CASE("rope is read from the keys of transformers 4 and of transformers 5 alike") {
  const Rope old = read(llama(R"("rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 4})")).rope;
  CHECK(old.theta == 500000.0);
  CHECK(old.scaling == Rope::Scaling::linear);
  CHECK(old.factor == 4.0);
  const Rope now =
      read(llama(R"("rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0})")).rope;
  CHECK(now == old);
  const Rope yarn = read(llama(R"("rope_scaling": {"rope_type": "yarn", "factor": 4})")).rope;
  CHECK(yarn.scaling == Rope::Scaling::other);
  CHECK(yarn.scaling_name == "yarn");
}

TEST_CASE("gemma3 has a rotary table for each kind of layer, from old and new keys") {
  const std::string base = R"("model_type": "gemma3_text", "num_hidden_layers": 6)";
  const ModelSpec old = read("{" + base + R"(, "rope_theta": 2e6, "rope_local_base_freq": 5e3,
      "rope_scaling": {"rope_type": "linear", "factor": 8}})");
  CHECK(old.rope.theta == 2e6);
  CHECK(old.rope.factor == 8);
  CHECK(old.local_rope.theta == 5e3);
  CHECK(old.local_rope.scaling == Rope::Scaling::none);
  const ModelSpec now = read("{" + base + R"(, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 2e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}})");
  CHECK(now.rope == old.rope);
  CHECK(now.local_rope == old.local_rope);
}

TEST_CASE("a multimodal configuration is read as its language model") {
  const ModelSpec spec = read(R"({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
      "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
      "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
                      "intermediate_size": 10240}})");
  CHECK(spec.model_type == "gemma3_text");
  CHECK(spec.architecture == "Gemma3ForCausalLM");
  CHECK(spec.stored_dtype == Dtype::bf16);
  CHECK(spec.hidden_size == 2560);
}

TEST_CASE("windows lie on the layers that each family gives them") {
  using enum AttentionSpan;
  const auto spans = [](const std::string& json) { return read(json).layer_spans; };
  CHECK(spans(R"({"model_type": "mistral", "num_hidden_layers": 2})") == std::vector{sliding, sliding});
  CHECK(spans(R"({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": null})") ==
        std::vector{full, full});
  CHECK(spans(R"({"model_type": "qwen2", "num_hidden_layers": 2, "sliding_window": 8})") == std::vector{full, full});
  CHECK(
      spans(R"({"model_type": "qwen2", "num_hidden_layers": 2, "use_sliding_window": true, "max_window_layers": 1})") ==
      std::vector{full, sliding});
  CHECK(spans(R"({"model_type": "gemma2", "num_hidden_layers": 3})") == std::vector{sliding, full, sliding});
  CHECK(spans(R"({"model_type": "gemma3_text", "num_hidden_layers": 6})") ==
        std::vector{sliding, sliding, sliding, sliding, sliding, full});
  CHECK_THROWS_AS(spans(R"({"model_type": "gemma2", "num_hidden_layers": 3, "layer_types": ["full_attention"]})"),
                  ModelError);
  CHECK_THROWS_AS(spans(R"({"model_type": "gemma2", "sliding_window": null})"), ModelError);
}

TEST_CASE("the stored dtype, quantization and text of the configuration are kept") {
  CHECK(read(llama(R"("torch_dtype": "float16")")).stored_dtype == Dtype::f16);
  CHECK(read(llama(R"("dtype": "bfloat16")")).stored_dtype == Dtype::bf16);
  CHECK(read(llama("")).stored_dtype == Dtype::f32);
  CHECK_THROWS_AS(read(llama(R"("dtype": "float7")")), ModelError);
  CHECK(read(llama(R"("quantization_config": {"quant_method": "gptq"})")).quantization == "gptq");
  CHECK(read(llama("")).config_json == llama(""));
}

}  // namespace vramfit
