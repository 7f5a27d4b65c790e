#include "executor/checkpoint/tensor_names.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace vramfit {
namespace {

// Prefixes of classes with a head (llama, gpt2, bert), of text models inside multimodal ones, of torch.compile and of
// data-parallel wrappers.
constexpr std::array<std::string_view, 8> kPrefixes{
    "", "model.", "transformer.", "bert.", "_orig_mod.", "language_model.", "module.", "model.language_model."};

// Spellings that checkpoints of the same class use for each other: bert's layer norms were first written from
// TensorFlow, and its head's bias is one tensor under two names.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSpellings{{
    {"LayerNorm.weight", "LayerNorm.gamma"},
    {"LayerNorm.bias", "LayerNorm.beta"},
    {"cls.predictions.bias", "cls.predictions.decoder.bias"},
    {"cls.predictions.decoder.bias", "cls.predictions.bias"},
}};

// What a tied model's one tensor may be called when the checkpoint keeps it with the head.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTied{{
    {"embed_tokens.weight", "lm_head.weight"},
    {"wte.weight", "lm_head.weight"},
    {"word_embeddings.weight", "cls.predictions.decoder.weight"},
}};

void add_prefixed(std::vector<std::string>& names, const std::string& name) {
  for (const std::string_view prefix : kPrefixes) names.push_back(std::string(prefix) + name);
}

bool has_parameter(const Graph& graph, std::string_view name) {
  return std::any_of(graph.parameters.begin(), graph.parameters.end(),
                     [&](const Parameter& parameter) { return parameter.name == name; });
}

}  // namespace

std::vector<std::string> checkpoint_names(const std::string& name, const Graph& graph) {
  std::vector<std::string> spellings{name};
  for (const auto& [ours, theirs] : kSpellings) {
    if (name.ends_with(ours)) spellings.push_back(name.substr(0, name.size() - ours.size()).append(theirs));
  }
  std::vector<std::string> names;
  for (const std::string& spelling : spellings) {
    add_prefixed(names, spelling);
    const std::size_t dot = spelling.find('.');
    const bool has_prefix = dot != std::string::npos && std::find(kPrefixes.begin(), kPrefixes.end(),
                                                                  spelling.substr(0, dot + 1)) != kPrefixes.end();
    if (has_prefix) add_prefixed(names, spelling.substr(dot + 1));
  }
  for (const auto& [embedding, head] : kTied) {
    if (name.ends_with(embedding) && !has_parameter(graph, head)) add_prefixed(names, std::string(head));
  }
  return names;
}

}  // namespace vramfit
