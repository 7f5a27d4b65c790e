#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "model_specs/config.h"
#include "model_specs/parameters.h"

namespace vramfit {
namespace {

std::int64_t count(const std::string& config) { return parameter_count(parse_config(config, "config.json")); }

bool has(const ModelSpec& spec, const std::string& name) {
  const std::vector<NamedShape> list = parameters(spec);
  return std::any_of(list.begin(), list.end(), [&](const NamedShape& tensor) { return tensor.name == name; });
}

}  // namespace

TEST_CASE("opt with a narrow embedding projects in and out of it, and has no last norm when norms follow") {
  const std::string config =
      R"({"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
          "num_attention_heads": 16, "word_embed_proj_dim": 512, "do_layer_norm_before": false})";
  const ModelSpec spec = parse_config(config, "opt-350m");
  CHECK(parameter_count(spec) == 331196416);
  CHECK(has(spec, "model.decoder.project_in.weight"));
  CHECK_FALSE(has(spec, "model.decoder.final_layer_norm.weight"));
}

TEST_CASE("t5 has one embedding whatever tie_word_embeddings says, and gated MLPs have two inputs") {
  const std::string gated =
      R"({"model_type": "t5", "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu")";
  CHECK(count(gated + R"(, "tie_word_embeddings": false})") == 60511616);
  CHECK(count(gated + "}") == 60511616);
  CHECK(has(parse_config(gated + "}", "t5"), "decoder.block.7.layer.2.DenseReluDense.wi_1.weight"));
  CHECK_THROWS_AS(count(R"({"model_type": "t5", "feed_forward_proj": "gated-"})"), ModelError);
}

TEST_CASE("deepseek-v3's routing bias is a buffer that is stored, and not a parameter") {
  const ModelSpec spec = parse_config(R"({"model_type": "deepseek_v3"})", "v3");
  CHECK(parameter_count(spec) == 671026404352);
  std::int64_t biases = 0;
  for (const NamedBuffer& buffer : buffers(spec)) biases += buffer.persistent ? buffer.shape.front() : 0;
  CHECK(biases == 14848);
}

TEST_CASE("qwen's sparse layers follow mlp_only_layers and decoder_sparse_step") {
  const ModelSpec spec = parse_config(R"({"model_type": "qwen3_moe", "num_hidden_layers": 4, "decoder_sparse_step": 2,
                       "mlp_only_layers": [3]})",
                                      "sparse");
  CHECK_FALSE(has(spec, "model.layers.0.mlp.experts.gate_up_proj"));
  CHECK(has(spec, "model.layers.1.mlp.experts.gate_up_proj"));
  CHECK(has(spec, "model.layers.3.mlp.gate_proj.weight"));
}

TEST_CASE("sizes whose product overflows are an error of the model, in every counted family") {
  const std::string huge = "1000000000000";
  for (const std::string config :
       {R"("mixtral", "num_attention_heads": HUGE, "num_key_value_heads": 1, "head_dim": HUGE)",
        R"("qwen3_moe", "moe_intermediate_size": HUGE, "hidden_size": HUGE, "num_attention_heads": 1, "head_dim": 1,
           "num_key_value_heads": 1)",
        R"("deepseek_v2", "num_attention_heads": HUGE, "v_head_dim": HUGE)", R"("gpt_oss", "intermediate_size": HUGE)",
        R"("gpt_neox", "hidden_size": HUGE)", R"("opt", "max_position_embeddings": HUGE, "vocab_size": HUGE)",
        R"("t5", "num_heads": HUGE, "d_kv": HUGE)"}) {
    std::string text = "{\"model_type\": " + config + "}";
    for (std::size_t at = text.find("HUGE"); at != std::string::npos; at = text.find("HUGE")) text.replace(at, 4, huge);
    CAPTURE(text);
    CHECK_THROWS_AS(parse_config(text, "config.json"), ModelError);
  }
}

}  // namespace vramfit
