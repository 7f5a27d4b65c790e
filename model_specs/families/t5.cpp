// t5 (T5Config): encoder and decoder with relative positions and one embedding, which transformers 5 ties to the head
// whatever tie_word_embeddings says. Counted only.
#include <fmt/format.h>

#include "model_specs/families/decoder.h"
#include "model_specs/families/families.h"

namespace vramfit {
namespace {

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = config.size("vocab_size", 32128);
  spec.hidden_size = config.size("d_model", 512);
  spec.intermediate_size = config.size("d_ff", 2048);
  spec.head_dim = config.size("d_kv", 64);
  spec.num_hidden_layers = config.layers("num_layers", 6);
  spec.num_decoder_layers = config.is_null("num_decoder_layers")
                                ? spec.num_hidden_layers
                                : config.layers("num_decoder_layers", spec.num_hidden_layers);
  spec.num_attention_heads = spec.num_key_value_heads = config.size("num_heads", 8);
  spec.relative_attention_num_buckets = config.size("relative_attention_num_buckets", 32);
  spec.max_position_embeddings = config.size("n_positions", 512);
  spec.tie_word_embeddings = true;
  spec.norm_eps = config.number("layer_norm_epsilon", 1e-6);
  spec.dropout = config.number("dropout_rate", 0.1, 0, 1);
  const std::string feed_forward = config.text("feed_forward_proj", "relu");
  const std::string gated = "gated-";
  spec.gated_mlp = feed_forward.rfind(gated, 0) == 0;
  const std::string name = spec.gated_mlp ? feed_forward.substr(gated.size()) : feed_forward;
  if (name == "relu") {
    spec.activation = Activation::relu;
  } else if (name == "silu") {
    spec.activation = Activation::silu;
  } else if (name == "gelu") {
    spec.activation = spec.gated_mlp ? Activation::gelu_tanh : Activation::gelu_erf;
  } else {
    config.fail("feed_forward_proj", "isn't relu, gelu or silu, or one of them after gated-");
  }
}

void attention_shapes(ShapeList& list, const ModelSpec& spec, const std::string& module) {
  const std::int64_t inner = checked_mul(spec.num_attention_heads, spec.head_dim);
  for (const char* name : {"q", "k", "v"}) list.linear(module + name, inner, spec.hidden_size, false);
  list.linear(module + "o", spec.hidden_size, inner, false);
}

void feed_forward_shapes(ShapeList& list, const ModelSpec& spec, const std::string& module) {
  const std::int64_t inner = spec.intermediate_size, hidden = spec.hidden_size;
  if (spec.gated_mlp) {
    list.linear(module + "wi_0", inner, hidden, false);
    list.linear(module + "wi_1", inner, hidden, false);
  } else {
    list.linear(module + "wi", inner, hidden, false);
  }
  list.linear(module + "wo", hidden, inner, false);
}

// A stack of `layers` blocks; the first holds the stack's position biases.
void stack_shapes(ShapeList& list, const ModelSpec& spec, const std::string& stack, std::int64_t layers) {
  const bool decoder = stack == "decoder.";
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string block = fmt::format("{}block.{}.layer.", stack, i);
    attention_shapes(list, spec, block + "0.SelfAttention.");
    if (i == 0) {
      list.add(block + "0.SelfAttention.relative_attention_bias.weight",
               {spec.relative_attention_num_buckets, spec.num_attention_heads});
    }
    list.add(block + "0.layer_norm.weight", {spec.hidden_size});
    if (decoder) {
      attention_shapes(list, spec, block + "1.EncDecAttention.");
      list.add(block + "1.layer_norm.weight", {spec.hidden_size});
    }
    const std::string last = block + (decoder ? "2." : "1.");
    feed_forward_shapes(list, spec, last + "DenseReluDense.");
    list.add(last + "layer_norm.weight", {spec.hidden_size});
  }
  list.add(stack + "final_layer_norm.weight", {spec.hidden_size});
}

std::vector<NamedShape> t5_parameters(const ModelSpec& spec) {
  ShapeList list;
  list.add("shared.weight", {spec.vocab_size, spec.hidden_size});
  stack_shapes(list, spec, "encoder.", spec.num_hidden_layers);
  stack_shapes(list, spec, "decoder.", spec.num_decoder_layers);
  return list.take();
}

}  // namespace

Family t5_family() {
  return {.model_type = "t5",
          .classes = {"T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"},
          .parse = parse,
          .parameters = t5_parameters,
          .buffers = nullptr,
          .graph = nullptr};
}

}  // namespace vramfit
