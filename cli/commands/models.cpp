#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/flags/model.h"
#include "cli/format/terminal.h"
#include "model_specs/catalog.h"
#include "model_specs/parameters.h"

namespace vramfit {
namespace {

struct ModelsFlags {
  std::string name;
  bool json = false;
};

void write_model(JsonWriter& writer, const ModelSpec& spec) {
  writer.begin_object().member("name", spec.name).member("parameters", parameter_count(spec));
  writer.member("model_type", spec.model_type).member("architecture", spec.architecture).member("source", spec.source);
  writer.member("hidden_size", spec.hidden_size).member("num_hidden_layers", spec.num_hidden_layers);
  writer.member("num_attention_heads", spec.num_attention_heads)
      .member("num_key_value_heads", spec.num_key_value_heads);
  writer.member("vocab_size", spec.vocab_size).member("max_position_embeddings", spec.max_position_embeddings);
  writer.member("tie_word_embeddings", spec.tie_word_embeddings).end_object();
}

std::string row(const ModelSpec& spec) {
  return fmt::format("{:<46}{:>12}  {:<14}{:>4} layers of {:>6}\n", printable(spec.name),
                     short_count(parameter_count(spec)), printable(spec.model_type), spec.num_hidden_layers,
                     spec.hidden_size);
}

std::string details(const ModelSpec& spec) {
  std::string text = row(spec);
  const auto line = [&](std::string_view name, std::string_view value) {
    text += fmt::format("  {:<24}{}\n", name, value);
  };
  line("architecture", printable(spec.architecture));
  line("parameters", fmt::to_string(parameter_count(spec)));
  line("attention", fmt::format("{} heads, {} of keys and values, {} wide", spec.num_attention_heads,
                                spec.num_key_value_heads, spec.head_dim));
  line("vocabulary", fmt::to_string(spec.vocab_size));
  line("positions", fmt::to_string(spec.max_position_embeddings));
  line("tied embeddings", spec.tie_word_embeddings ? "yes" : "no");
  line("source", printable(spec.source, 500));
  return text;
}

std::string list_text() {
  std::string text;
  for (const CatalogEntry& entry : catalog()) text += row(catalog_spec(entry));
  return text;
}

std::string list_json() {
  JsonWriter writer;
  writer.begin_array();
  for (const CatalogEntry& entry : catalog()) write_model(writer, catalog_spec(entry));
  writer.end_array();
  return writer.take();
}

std::string model_json(const ModelSpec& spec) {
  JsonWriter writer;
  write_model(writer, spec);
  return writer.take();
}

}  // namespace

void add_models(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ModelsFlags>();
  command.add_option("MODEL", flags->name,
                     "Show this model: a catalog name, hub id, directory, config.json or safetensors file");
  command.add_flag("--json", flags->json, "Print JSON");
  command.callback([flags, &exit_code] {
    exit_code = 0;
    if (flags->name.empty()) {
      write_file("-", flags->json ? list_json() : list_text());
      return;
    }
    const ModelSpec spec = read_model(flags->name);
    write_file("-", flags->json ? model_json(spec) : details(spec));
  });
}

}  // namespace vramfit
