#include "model_specs/config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "model_specs/families/families.h"

namespace vramfit {
namespace {

struct ActivationRow {
  std::string_view name;
  Activation activation;
};
// transformers' ACT2FN: gelu_new and gelu_pytorch_tanh are the tanh form, swish is silu.
constexpr std::array kActivations{
    ActivationRow{"silu", Activation::silu},
    ActivationRow{"swish", Activation::silu},
    ActivationRow{"gelu_pytorch_tanh", Activation::gelu_tanh},
    ActivationRow{"gelu_new", Activation::gelu_tanh},
    ActivationRow{"gelu_fast", Activation::gelu_tanh},
    ActivationRow{"gelu", Activation::gelu_erf},
    ActivationRow{"relu", Activation::relu},
};

// A parsed value takes up to fifty times its text's size ("[],"): a hostile file costs at most about 200 MB and 1 s.
constexpr std::size_t kConfigBytes = std::size_t{4} << 20;
constexpr int kConfigDepth = 64;

// transformers reads `quantization_config.quant_method`; other shapes of that key are left alone.
std::string quantization(ConfigReader& config) {
  auto nested = config.object("quantization_config");
  return nested ? nested->text("quant_method", "") : "";
}

Dtype stored_dtype(ConfigReader& config) {
  const std::string name = config.text(config.has("dtype") ? "dtype" : "torch_dtype", "float32");
  const std::string_view plain = name.rfind("torch.", 0) == 0 ? std::string_view(name).substr(6) : name;
  return plain == "auto" ? Dtype::f32 : parse_dtype(plain);
}

std::string architecture(ConfigReader& config, const Family& family) {
  const std::vector<std::string> named = config.texts("architectures");
  if (named.empty()) return std::string(family.classes.front());
  const auto& known = family.classes;
  if (std::find(known.begin(), known.end(), named.front()) != known.end()) return named.front();
  throw UnknownFamily(
      fmt::format("{}\"{}\" isn't a class that is counted{}", config.where("architectures"), printable(named.front()),
                  did_you_mean(printable(named.front()), std::vector<std::string>(known.begin(), known.end()))),
      std::string(family.model_type));
}

/// transformers 5.23, configuration_utils.py: PreTrainedConfig.__init__, where output_attentions asks for eager, too.
void read_library_attention(ConfigReader& config, ModelSpec& spec) {
  for (const char* key : {"attn_implementation", "_attn_implementation"}) {
    if (config.is_text(key)) spec.library_attention = config.text(key, "");
  }
  if (spec.library_attention == "sdpa") spec.library_attention.clear();
}

ModelSpec read_spec(std::string_view json, const std::string& where) {
  if (json.rfind("\xEF\xBB\xBF", 0) == 0) {
    throw ModelError(where + ": starts with a byte order mark; save it as plain UTF-8");
  }
  const JsonValue document = parse_json(json, where, {.bytes = kConfigBytes, .depth = kConfigDepth});
  const JsonObject root(document, where);
  ConfigReader outer(root);
  std::optional<ConfigReader> text = outer.object("text_config");
  ConfigReader& config = text ? *text : outer;

  ModelSpec spec;
  spec.model_type = config.text("model_type", "");
  if (spec.model_type.empty() && text) spec.model_type = outer.text("model_type", "") + "_text";
  if (spec.model_type.empty()) config.fail("model_type", "missing: add the model's family, such as \"llama\"");
  const Family& family = find_family(spec.model_type);
  // A multimodal model's class isn't one of its language model's classes; only the language model is counted.
  spec.architecture = text ? std::string(family.classes.front()) : architecture(outer, family);
  spec.stored_dtype = stored_dtype(outer.has("dtype") || outer.has("torch_dtype") ? outer : config);
  spec.quantization = quantization(outer);
  spec.source = where;
  spec.config_json = std::string(json);
  family.parse(config, spec);
  read_library_attention(config, spec);
  parameter_count(spec);  // a model whose size overflows is refused here, before anything reads it
  return spec;
}

}  // namespace

ModelSpec parse_config(std::string_view json, const std::string& where) {
  try {
    return read_spec(json, where);
  } catch (const InputError& error) {
    const std::string message = error.what();
    throw ModelError(message.rfind(where, 0) == 0 ? message : where + ": " + message);
  }
}

std::int64_t ConfigReader::size(std::string_view key, std::int64_t fallback, std::int64_t most) {
  if (!object_.has(key) && !object_.is_null(key)) return fallback;
  return object_.integer(key, 1, most);
}

std::int64_t ConfigReader::size_or_zero(std::string_view key, std::int64_t fallback, std::int64_t most) {
  if (!object_.has(key) && !object_.is_null(key)) return fallback;
  return object_.integer(key, 0, most);
}

std::optional<std::int64_t> ConfigReader::optional_size(std::string_view key) {
  if (!object_.has(key)) return std::nullopt;
  return object_.integer(key, 1, kMostSize);
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  if (!object_.has(key) && !object_.is_null(key)) return fallback;
  return object_.boolean(key);
}

double ConfigReader::number(std::string_view key, double fallback, double least, double most) {
  if (!object_.has(key) && !object_.is_null(key)) return fallback;
  return object_.real(key, least, most);
}

std::optional<double> ConfigReader::optional_number(std::string_view key, double least, double most) {
  if (!object_.has(key)) return std::nullopt;
  return object_.real(key, least, most);
}

std::string ConfigReader::text(std::string_view key, const std::string& fallback) {
  return object_.has(key) ? object_.text(key) : fallback;
}

std::vector<std::string> ConfigReader::texts(std::string_view key) {
  return object_.has(key) ? object_.texts(key) : std::vector<std::string>{};
}

std::vector<std::int64_t> ConfigReader::integers(std::string_view key) {
  return object_.has(key) ? object_.integers(key, 0, kMostSize) : std::vector<std::int64_t>{};
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) {
  if (!object_.has(key)) return std::nullopt;
  return ConfigReader(object_.object(key));
}

Activation ConfigReader::activation(std::string_view key, Activation fallback) {
  const std::string name = text(key, "");
  if (name.empty()) return fallback;
  std::vector<std::string> known;
  for (const ActivationRow& row : kActivations) {
    if (row.name == name) return row.activation;
    known.emplace_back(row.name);
  }
  fail(key, fmt::format("\"{}\" isn't an activation that is known{}", printable(name),
                        did_you_mean(printable(name), known)));
}

std::vector<AttentionSpan> ConfigReader::layer_types(std::int64_t layers) {
  std::vector<AttentionSpan> spans;
  if (!has("layer_types")) return spans;
  for (const std::string& name : texts("layer_types")) {
    const bool sliding = name == "sliding_attention";
    if (!sliding && name != "full_attention") {
      fail("layer_types", fmt::format("\"{}\" isn't full_attention or sliding_attention", printable(name)));
    }
    spans.push_back(sliding ? AttentionSpan::sliding : AttentionSpan::full);
  }
  if (static_cast<std::int64_t>(spans.size()) != layers) {
    fail("layer_types", fmt::format("names {} layers, but num_hidden_layers is {}", spans.size(), layers));
  }
  return spans;
}

void ConfigReader::fail(std::string_view key, const std::string& message) const {
  throw ModelError(object_.where(key) + message);
}

Rope read_rope(ConfigReader& config, double theta, std::string_view layer_type) {
  Rope rope;
  rope.theta = config.number("rope_theta", theta, 1e-3);
  rope.original_max_position_embeddings = config.size("max_position_embeddings", rope.original_max_position_embeddings);
  std::optional<ConfigReader> entry = config.object("rope_scaling");
  if (!entry) entry = config.object("rope_parameters");
  if (!entry) return rope;
  std::optional<ConfigReader> nested = entry->object(layer_type);
  return read_rope_entry(nested ? *nested : *entry, rope);
}

Rope read_rope_entry(ConfigReader& entry, Rope rope) {
  rope.theta = entry.number("rope_theta", rope.theta, 1e-3);
  rope.partial_factor = entry.number("partial_rotary_factor", rope.partial_factor, 1e-6, 1.0);
  const std::string type = entry.text("rope_type", entry.text("type", "default"));
  if (type == "default") return rope;
  rope.factor = entry.number("factor", 1.0, 1e-3);
  if (type == "linear") {
    rope.scaling = Rope::Scaling::linear;
  } else if (type == "llama3") {
    rope.scaling = Rope::Scaling::llama3;
    rope.low_freq_factor = entry.number("low_freq_factor", rope.low_freq_factor, 1e-3);
    rope.high_freq_factor = entry.number("high_freq_factor", rope.high_freq_factor, 1e-3);
    rope.original_max_position_embeddings =
        entry.size("original_max_position_embeddings", rope.original_max_position_embeddings);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      entry.fail("high_freq_factor", "must be above low_freq_factor");
    }
  } else {
    rope.scaling = Rope::Scaling::other;
    rope.scaling_name = printable(type, 40);
  }
  return rope;
}

void read_decoder_sizes(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = config.size("vocab_size", spec.vocab_size);
  spec.hidden_size = config.size("hidden_size", spec.hidden_size);
  spec.intermediate_size = config.size("intermediate_size", spec.intermediate_size);
  spec.num_hidden_layers = config.layers("num_hidden_layers", spec.num_hidden_layers);
  spec.num_attention_heads = config.size("num_attention_heads", spec.num_attention_heads);
  spec.max_position_embeddings = config.size("max_position_embeddings", spec.max_position_embeddings);
  if (!config.is_null("attention_dropout")) spec.attention_dropout = config.number("attention_dropout", 0, 0, 1);
  const bool omitted = !config.has("num_key_value_heads") && !config.is_null("num_key_value_heads");
  const std::int64_t fallback =
      omitted && spec.num_key_value_heads > 0 ? spec.num_key_value_heads : spec.num_attention_heads;
  spec.num_key_value_heads = config.optional_size("num_key_value_heads").value_or(fallback);
  if (spec.num_attention_heads % spec.num_key_value_heads != 0) {
    config.fail("num_key_value_heads", fmt::format("{} doesn't divide num_attention_heads, {}",
                                                   spec.num_key_value_heads, spec.num_attention_heads));
  }
}

std::int64_t read_head_dim(ConfigReader& config, const ModelSpec& spec) {
  const std::optional<std::int64_t> given = config.optional_size("head_dim");
  if (given) return *given;
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.fail("num_attention_heads", fmt::format("{} doesn't divide hidden_size, {}, and head_dim isn't given",
                                                   spec.num_attention_heads, spec.hidden_size));
  }
  return spec.hidden_size / spec.num_attention_heads;
}

}  // namespace vramfit
