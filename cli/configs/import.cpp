#include "cli/configs/import.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/configs/launch_line.h"
#include "cli/configs/syntax/json.h"
#include "cli/configs/syntax/toml.h"
#include "cli/configs/syntax/yaml.h"
#include "cli/configs/tools/shared.h"
#include "cli/files.h"
#include "job/fields/job_fields.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostFiles = 16;

enum class Syntax { yaml, toml, json, words };

bool is_all_comments_before(std::string_view text, char wanted) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t first = line.find_first_not_of(" \t\r\xef\xbb\xbf");
    if (first != std::string_view::npos && line[first] != '#') return line[first] == wanted;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

/// By the file's name, or else by how its text begins.
Syntax syntax_of(const std::string& path, std::string_view text) {
  for (const auto& [ending, syntax] :
       {std::pair{".yaml", Syntax::yaml}, {".yml", Syntax::yaml}, {".toml", Syntax::toml}, {".json", Syntax::json}}) {
    if (path.ends_with(ending)) return syntax;
  }
  if (is_all_comments_before(text, '{')) return Syntax::json;
  if (is_all_comments_before(text, '[')) return Syntax::toml;
  if (path.ends_with(".sh")) return Syntax::words;
  const auto commands = [&]() -> std::vector<std::vector<ShellWord>> {
    try {
      return shell_commands(text, path);
    } catch (const InputError&) {
      return {};
    }
  }();
  return std::ranges::any_of(commands, is_launch_line) ? Syntax::words : Syntax::yaml;
}

/// "optimizer.fused": true, in maps that are made where they are missing. The name of a component alone stands for its
/// _component_ (torchtune/config/_utils.py: _merge_yaml_and_cli_args).
void put_path(ConfigNode& map, std::string_view path, ConfigNode value) {
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) {
    const ConfigNode* const before = find_in(map, path);
    const bool is_component = before != nullptr && find_in(*before, "_component_") != nullptr && !value.is_map();
    if (is_component) return put_path(map, fmt::format("{}._component_", path), std::move(value));
    put(map, path, std::move(value));
    return;
  }
  const ConfigNode* found = find_in(map, path.substr(0, dot));
  ConfigNode inner = found == nullptr ? ConfigNode{} : *found;
  put_path(inner, path.substr(dot + 1), std::move(value));
  put(map, path.substr(0, dot), std::move(inner));
}

class Importer {
 public:
  void add_file(const std::string& path) {
    if (configs_.size() >= kMostFiles) throw InputError(fmt::format("more than {} files", kMostFiles));
    const std::string text = read_file(path);
    const Syntax syntax = syntax_of(path, text);
    if (syntax == Syntax::words) {
      add_script(text, path);
      return;
    }
    ConfigNode root = syntax == Syntax::json   ? read_json(text, path)
                      : syntax == Syntax::toml ? read_toml(text, path)
                                               : read_yaml(text, path);
    const ConfigTool* tool = root.is_map() ? tool_of(root) : nullptr;
    if (tool == nullptr) {
      throw InputError(
          fmt::format("{}: is none of the configurations that are read ({})", printable(path, 300), known_tools()));
    }
    if (tool == &torchtune_tool()) {
      for (auto& [key, value] : std::exchange(overrides_, {})) put_path(root, key, std::move(value));
    }
    add({path, std::move(root), tool});
  }

  void add_words(const std::vector<std::string>& words) {
    std::vector<ShellWord> line;
    for (const std::string& word : words) line.push_back({.text = word, .line = 1});
    add_line(line, "command line");
  }

  ImportedJob take() {
    finish(draft_);
    ImportedJob job;
    for (const ConfigFile& config : configs_) {
      job.files.push_back({config.path, std::string(config.tool->what)});
    }
    job.model = draft_.get(fact::kModel).value_or("");
    job.stack = draft_.get(fact::kLibrary).value_or("");
    job.gpus = gpu_count(draft_);
    job.is_ddp_on_several = draft_.is(fact::kSeveral, "ddp");
    for (const JobField& field : job_fields()) {
      if (const auto value = draft_.get(field.name)) job.fields.emplace_back(field.name, *value);
    }
    job.understood = std::move(draft_.understood);
    job.assumed = std::move(draft_.assumed);
    job.unmodelled = std::move(draft_.unmodelled);
    job.ignored = std::move(draft_.ignored);
    for (auto* findings : {&job.understood, &job.unmodelled, &job.ignored}) sort(*findings);
    return job;
  }

 private:
  void add(ConfigFile config) {
    config.tool->read(config.root, config.path, draft_);
    const std::string path = config.path;
    configs_.push_back(std::move(config));
    follow(draft_.take_references(), path);
  }

  void add_script(const std::string& text, const std::string& path) {
    for (const auto& words : shell_commands(text, path)) {
      if (!is_launch_line(words)) continue;
      add_line(words, path);
      return;
    }
    throw InputError(fmt::format("{}: has no command that starts a training (torchrun, accelerate launch, python, ...)",
                                 printable(path, 300)));
  }

  /// What the command line says comes before what its files say.
  void add_line(const std::vector<ShellWord>& words, const std::string& path) {
    LaunchLine line = read_launch_line(words, path);
    if (line.configs.empty() && line.references.empty()) {
      throw InputError(fmt::format("{}: has no arguments and names no configuration", printable(path, 300)));
    }
    overrides_ = std::move(line.overrides);
    for (ConfigFile& config : line.configs) add(std::move(config));
    draft_.yields = true;
    follow(line.references, path);
    draft_.yields = false;
  }

  void follow(const std::vector<Finding>& references, const std::string& from) {
    for (const Finding& reference : references) {
      const std::optional<std::string> path = found(reference.value, from);
      if (!path) {
        missing(reference);
      } else if (std::ranges::find(configs_, *path, &ConfigFile::path) == configs_.end()) {
        add_reference(reference, *path);
      }
    }
  }

  void add_reference(const Finding& reference, const std::string& path) {
    if (reference.key.ends_with("fsdp_config")) {
      const ConfigNode root = read_json(read_file(path), path);
      read_fsdp({path, "", &root}, 2, draft_);
    } else {
      add_file(path);
    }
  }

  /// As it stands, or beside the file that names it.
  static std::optional<std::string> found(const std::string& path, const std::string& from) {
    std::error_code ignored;
    const std::filesystem::path beside = std::filesystem::path(from).parent_path() / path;
    for (const std::string& each : {path, beside.string()}) {
      if (std::filesystem::is_regular_file(each, ignored)) return each;
    }
    return std::nullopt;
  }

  /// By file, in the order in which they were read, and line.
  void sort(std::vector<Finding>& findings) const {
    const auto rank = [&](const Finding& finding) {
      const auto file = std::ranges::find(configs_, finding.file, &ConfigFile::path);
      return std::pair(file - configs_.begin(), finding.line);
    };
    std::ranges::stable_sort(findings, {}, rank);
  }

  void missing(const Finding& reference) {
    Finding finding = reference;
    finding.says = "the file isn't there; give it, too";
    draft_.unmodelled.push_back(std::move(finding));
  }

  std::vector<ConfigFile> configs_;
  std::vector<std::pair<std::string, ConfigNode>> overrides_;
  Draft draft_;
};

}  // namespace

ImportedJob import_configs(const std::vector<std::string>& paths, const std::vector<std::string>& words) {
  if (paths.empty() && words.empty())
    throw InputError("FILE: missing; name a configuration, or two that belong together");
  Importer importer;
  if (!words.empty()) importer.add_words(words);
  for (const std::string& path : paths) importer.add_file(path);
  return importer.take();
}

bool is_foreign_config(const std::string& path) {
  const std::string text = read_file(path);
  if (syntax_of(path, text) != Syntax::json) return true;
  const ConfigNode root = read_json(text, path);
  return root.is_map() && tool_of(root) != nullptr;
}

std::string cluster_text(const GpuCount& gpus, const std::string& card) {
  if (gpus.per_node == 0) return "";
  return gpus.nodes > 1 ? fmt::format("{}x{}x{}", gpus.nodes, gpus.per_node, card)
                        : fmt::format("{}x{}", gpus.per_node, card);
}

std::string command_of(const ImportedJob& job) {
  const std::string gpus = cluster_text(job.gpus, "CARD");
  std::string text = fmt::format("vramfit estimate {} --gpus {} --stack {}", job.model.empty() ? "MODEL" : job.model,
                                 gpus.empty() ? "CLUSTER" : gpus, job.stack);
  for (const auto& [field, value] : job.fields) text += fmt::format(" {} {}", flag_of(job_field_named(field)), value);
  return text;
}

}  // namespace vramfit
