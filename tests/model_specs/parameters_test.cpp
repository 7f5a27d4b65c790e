#include "model_specs/parameters.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "model_specs/config.h"
#include "model_specs/families/families.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

struct Golden {
  const char* name;
  const char* config;
  std::int64_t parameters;
};

// Totals of transformers 5.23's meta models; tests/oracle compares names and shapes too.
const std::array kGolden{
    Golden{"llama 3.1 8B",
           R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
               "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256})",
           8030261248},
    Golden{"mistral 7B", R"({"model_type": "mistral"})", 7241732096},
    Golden{"qwen2.5 7B",
           R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
               "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064})",
           7615616512},
    Golden{"qwen3 8B",
           R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
               "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936})",
           8190735360},
    Golden{"granite 3.3 8B",
           R"({"model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800, "num_hidden_layers": 40,
               "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49159, "tie_word_embeddings": true})",
           8170864640},
    Golden{"gemma 7B", R"({"model_type": "gemma"})", 8537680896},
    Golden{"gemma2 9B",
           R"({"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
               "num_attention_heads": 16, "num_key_value_heads": 8})",
           9241705984},
    Golden{"gemma3 1B",
           R"({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
               "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144})",
           999885952},
    Golden{"phi3 mini", R"({"model_type": "phi3"})", 3821079552},
    Golden{"gpt2", R"({"model_type": "gpt2"})", 124439808},
    Golden{"bert base, without a head", R"({"model_type": "bert", "architectures": ["BertModel"]})", 109482240},
};

}  // namespace

TEST_CASE("the parameters of well-known models add up to their published totals") {
  for (const Golden& golden : kGolden) {
    CAPTURE(golden.name);
    CHECK(parameter_count(parse_config(golden.config, golden.name)) == golden.parameters);
  }
}

TEST_CASE("tying the embeddings removes the head's matrix and nothing else") {
  for (const char* type : {"llama", "qwen2", "gemma", "phi3", "gpt2"}) {
    CAPTURE(type);
    const std::string head = std::string(R"({"model_type": ")") + type + R"(", "num_hidden_layers": 1, )";
    const ModelSpec tied = parse_config(head + R"("tie_word_embeddings": true})", "tied");
    const ModelSpec untied = parse_config(head + R"("tie_word_embeddings": false})", "untied");
    CHECK(parameter_count(untied) - parameter_count(tied) == tied.vocab_size * tied.hidden_size);
    CHECK(parameters(untied).back().name == "lm_head.weight");
  }
}

TEST_CASE("no parameter is named twice, and every family has a class with and one without a head") {
  for (const Family& family : families()) {
    CAPTURE(family.model_type);
    REQUIRE(family.classes.size() >= 2);
    const ModelSpec spec = parse_config(R"({"model_type": ")" + std::string(family.model_type) + R"("})", "defaults");
    for (const ModelSpec& each : {spec, without_head(spec)}) {
      std::set<std::string> names;
      for (const NamedShape& tensor : parameters(each)) names.insert(tensor.name);
      CHECK(names.size() == parameters(each).size());
    }
    CHECK(parameter_count(without_head(spec)) > 0);
  }
}

TEST_CASE("families are listed alphabetically, each once") {
  const auto by_name = [](const Family& a, const Family& b) { return a.model_type < b.model_type; };
  CHECK(std::is_sorted(families().begin(), families().end(), by_name));
  for (std::size_t i = 1; i < families().size(); ++i) CHECK(families()[i].model_type != families()[i - 1].model_type);
}

TEST_CASE("gemma's embedding scale and rotary frequencies are buffers, not parameters") {
  const std::vector<NamedBuffer> list = buffers(testing::small_model("gemma"));
  REQUIRE(list.size() == 3);
  CHECK(list[0].name == "model.embed_tokens.embed_scale");
  CHECK(list[0].shape.empty());
  CHECK(list[1].shape == std::vector<std::int64_t>{16});
}

}  // namespace vramfit
