// config.json read defensively into a ModelSpec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_value.h"
#include "model_specs/spec.h"

namespace vramfit {

/// Reads the text of a config.json; `where` names it in messages (a path, a hub id). At most 4 MiB and 64 levels; a
/// repeated key, a number outside its range, or a string in a number's place throws ModelError "WHERE: KEY: ...".
ModelSpec parse_config(std::string_view json, const std::string& where);

/// Maximum of any dimension. The product of two, and sums of a few such products, fit in 64 bits, so families multiply
/// without checks; tensors and totals are checked in parameter_count.
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 30;
/// Bounds every loop over a model: four times the layers of the deepest published ones (Llama 3.1 405B has 126).
inline constexpr std::int64_t kMostLayers = 512;
/// Experts of a layer, and other numbers of parts.
inline constexpr std::int64_t kMostParts = 4096;

/// Typed access to the keys of a configuration. A key that is omitted takes the fallback; null is allowed only where
/// transformers allows it (`optional_*`). Unknown keys are not an error: configurations contain many other keys.
class ConfigReader {
 public:
  explicit ConfigReader(JsonObject object) : object_(std::move(object)) {}

  /// Whether the key is there and not null.
  bool has(std::string_view key) { return object_.has(key); }
  /// Whether the key is there and null: not the same as omitted where a family's default isn't None.
  bool is_null(std::string_view key) { return object_.is_null(key); }
  bool is_text(std::string_view key) { return object_.is_text(key); }

  /// A positive integer up to `most`.
  std::int64_t size(std::string_view key, std::int64_t fallback, std::int64_t most = kMostSize);
  /// Up to kMostLayers.
  std::int64_t layers(std::string_view key, std::int64_t fallback) { return size(key, fallback, kMostLayers); }
  /// Experts and other parts: up to kMostParts.
  std::int64_t count(std::string_view key, std::int64_t fallback) { return size(key, fallback, kMostParts); }
  /// Like size, but zero is allowed.
  std::int64_t size_or_zero(std::string_view key, std::int64_t fallback, std::int64_t most = kMostSize);
  /// Empty if the key is omitted or null.
  std::optional<std::int64_t> optional_size(std::string_view key);
  bool boolean(std::string_view key, bool fallback);
  /// A finite number within [least, most]; integers are accepted.
  double number(std::string_view key, double fallback, double least = 0, double most = 1e30);
  std::optional<double> optional_number(std::string_view key, double least = 0, double most = 1e30);
  /// A string; omitted and null give the fallback.
  std::string text(std::string_view key, const std::string& fallback);
  /// Strings of a list; omitted and null give nothing.
  std::vector<std::string> texts(std::string_view key);
  /// Integers of a list, each in [0, kMostSize]; omitted and null give nothing.
  std::vector<std::int64_t> integers(std::string_view key);
  std::optional<ConfigReader> object(std::string_view key);
  /// An activation's name as transformers spells it ("silu", "gelu_pytorch_tanh").
  Activation activation(std::string_view key, Activation fallback);
  /// One span per layer from `layer_types`, or nothing if the key is omitted.
  std::vector<AttentionSpan> layer_types(std::int64_t layers);

  /// "FILE: KEY: ", for the caller's own messages.
  std::string where(std::string_view key) const { return object_.where(key); }
  /// Throws ModelError naming file and key.
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  JsonObject object_;
};

/// rope_theta and rope_scaling, or the rope_parameters that transformers 5 writes instead. `layer_type` picks the
/// entry when rope_parameters has one for each ("full_attention", "sliding_attention").
Rope read_rope(ConfigReader& config, double theta, std::string_view layer_type = "full_attention");

/// One entry of rope_parameters, or rope_scaling: what it doesn't say stays as in `rope`.
Rope read_rope_entry(ConfigReader& entry, Rope rope);

/// hidden_size, num_hidden_layers, vocab_size, intermediate_size, heads and max_position_embeddings of a decoder, with
/// the fallbacks that `spec` already holds; num_key_value_heads: null means one for each head.
void read_decoder_sizes(ConfigReader& config, ModelSpec& spec);

/// head_dim, or hidden_size / num_attention_heads when it is omitted or null. Throws when that isn't whole.
std::int64_t read_head_dim(ConfigReader& config, const ModelSpec& spec);

}  // namespace vramfit
