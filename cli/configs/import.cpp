#include "cli/configs/import.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "cli/configs/launch_line.h"
#include "cli/configs/launch_prefix.h"
#include "cli/configs/syntax/json.h"
#include "cli/configs/syntax/toml.h"
#include "cli/configs/syntax/yaml.h"
#include "cli/configs/tools/launchers.h"
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

class Importer {
 public:
  /// `named_by` reads files that no tool's own keys are in, where a program has named it.
  void add_file(const std::string& path, const ConfigTool* named_by = nullptr) {
    if (has_read(path)) return;  // a file before it named it
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
    if (root.is_map() && named_by != nullptr && (tool == nullptr || tool == &trainer_tool())) tool = named_by;
    if (tool == nullptr && path.ends_with(".py")) {
      throw InputError(
          fmt::format("{}: is a program; give its configuration, or after two dashes the command that starts "
                      "it: vramfit import -- accelerate launch {} ...",
                      printable(path, 300), printable(path, 300)));
    }
    if (tool == nullptr) {
      throw InputError(
          fmt::format("{}: is none of the configurations that are read ({})", printable(path, 300), known_tools()));
    }
    const bool takes_overrides = tool == &torchtune_tool() || tool == &torchtitan_tool() || tool == &axolotl_tool() ||
                                 tool == &llama_factory_tool() || named_by == &trainer_tool();
    is_changed_ = is_changed_ || (takes_overrides && !overrides_.empty());
    if (takes_overrides) apply_overrides(std::exchange(overrides_, {}), root, path, draft_);
    add({path, std::move(root), tool});
  }

  void add_words(const std::vector<std::string>& words) {
    std::vector<ShellWord> line;
    for (const std::string& word : words) line.push_back({.text = word, .line = 1});
    add_line(line, "command line");
  }

  /// `library` is of stacks(): whose trainer a file of TRL's arguments is for, where it doesn't say so itself.
  void expect(const std::string& library) { draft_.derive(fact::kWanted, library); }

  /// The model that is asked about, whichever the files name.
  void ask_about(const std::string& model) { draft_.derive(fact::kAskedModel, model); }

  ImportedJob take() {
    read_accelerates();
    for (const Override& each : overrides_) {
      draft_.ignore({each.value.file, each.key, &each.value}, "no file that was read has such keys");
    }
    finish(draft_);
    ImportedJob job;
    for (const ConfigFile& config : configs_) {
      job.files.push_back({config.path, std::string(config.tool->what)});
      if (is_changed_ || config.tool->program.empty() || !job.program.all.empty()) continue;
      const auto with_file = [&](std::string_view starter) {
        return fmt::format("{} {}", starter, shell_quoted(config.path));
      };
      job.program = {.all = with_file(config.tool->program), .rank = with_file(config.tool->rank)};
    }
    job.model = draft_.get(fact::kModel).value_or("");
    job.stack = draft_.get(fact::kLibrary).value_or("");
    job.gpus = gpu_count(draft_);
    job.is_ddp_on_several = draft_.is(fact::kSeveral, "ddp");
    if (const auto length = draft_.values().find(fact::kAnyLength);
        length != draft_.values().end() && !draft_.has("seq_len")) {
      job.open_length = fmt::format("{}{}", place(length->second.file, length->second.line), length->second.key);
    }
    job.clips = !draft_.is(fact::kClipping, "off");
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
    last_number_ = number_nodes(config.root, last_number_);
    config.tool->read(config.root, config.path, draft_);
    draft_.list_unread(config.root, config.path);
    const std::string path = config.path;
    configs_.push_back(std::move(config));
    follow(draft_.take_references(), path);
  }

  /// The first command that starts a training, with what was exported before it.
  void add_script(const std::string& text, const std::string& path) {
    std::vector<ShellWord> exported;
    const auto commands = shell_commands(text, path);
    for (auto words = commands.begin(); words != commands.end(); ++words) {
      if (words->front().text == "export") {
        std::copy_if(words->begin(), words->end(), std::back_inserter(exported),
                     [](const ShellWord& word) { return is_assignment(word.text); });
      }
      if (!is_launch_line(*words)) continue;
      add_line(*words, path, exported);
      if (std::any_of(words + 1, commands.end(), is_launch_line)) {
        draft_.note(fmt::format("{}: the first of its commands that start a training", printable(path, 300)));
      }
      return;
    }
    throw InputError(fmt::format("{}: has no command that starts a training (torchrun, accelerate launch, python, ...)",
                                 printable(path, 300)));
  }

  /// What the command line says comes before what its files say.
  void add_line(const std::vector<ShellWord>& words, const std::string& path,
                const std::vector<ShellWord>& environment = {}) {
    LaunchLine line = read_launch_line(words, path, environment);
    const bool says_nothing =
        std::ranges::all_of(line.configs, [](const ConfigFile& config) { return config.root.keys.empty(); });
    if (says_nothing && line.references.empty()) {
      throw InputError(fmt::format("{}: has no arguments and names no configuration", printable(path, 300)));
    }
    overrides_ = std::move(line.overrides);
    draft_.ignored.insert(draft_.ignored.end(), line.ignored.begin(), line.ignored.end());
    draft_.derive(fact::kStarter, line.starter);
    for (ConfigFile& config : line.configs) add(std::move(config));
    draft_.yields = true;
    follow(line.references, path, line.program);
    draft_.yields = false;
    if (line.program == &trainer_tool() && !overrides_.empty()) add_flags(path);  // the file isn't there
  }

  void add_flags(const std::string& path) {
    ConfigNode flags;
    for (Override& each : std::exchange(overrides_, {})) put(flags, each.key, std::move(each.value));
    add({path, std::move(flags), &trainer_tool()});
  }

  void follow(const std::vector<Finding>& references, const std::string& from, const ConfigTool* program = nullptr) {
    for (const Finding& reference : references) {
      const std::optional<std::string> path = found(reference.value, from);
      if (reference.key == "accelerate_config") {
        accelerates_.emplace_back(reference, path.value_or(""));
        continue;
      }
      if (!path) {
        missing(reference);
        continue;
      }
      Finding& read = draft_.understood.emplace_back(reference);
      read.says = "read as well";
      if (!has_read(*path)) add_reference(reference, *path, program);
    }
  }

  /// Those that TRL hands to accelerate's launcher: whatever else says something comes before them.
  void read_accelerates() {
    for (const auto& [reference, path] : accelerates_) {
      draft_.yields = true;
      const char* const shipped = trls_accelerate_config(reference.value);
      if (!path.empty()) {
        add_file(path);
      } else if (shipped != nullptr) {
        const std::string name = fmt::format("TRL's {}", reference.value);
        add({name, read_yaml(shipped, name), &accelerate_tool()});
      } else {
        missing(reference);
      }
      draft_.yields = false;
    }
  }

  void add_reference(const Finding& reference, const std::string& path, const ConfigTool* program) {
    if (reference.key.ends_with("fsdp_config")) {
      ConfigNode root = read_json(read_file(path), path);
      last_number_ = number_nodes(root, last_number_);
      read_fsdp({path, "", &root}, 2, draft_);
      draft_.list_unread(root, path);
    } else {
      add_file(path, program);
    }
  }

  /// Whether it is one of the files that were read, whatever names they were given by.
  bool has_read(const std::string& path) const {
    return std::ranges::any_of(configs_, [&](const ConfigFile& config) {
      std::error_code ignored;  // a command line is no file
      return config.path == path || std::filesystem::equivalent(config.path, path, ignored);
    });
  }

  /// As it stands, or in the folder of the file that names it, or in one above: examples name what lies beside them
  /// from the top folder of their project.
  static std::optional<std::string> found(const std::string& path, const std::string& from) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path;
    if (std::filesystem::path(path).is_absolute()) return std::nullopt;
    std::filesystem::path folder = std::filesystem::path(from).parent_path();
    while (true) {
      const std::string there = (folder / path).string();
      if (std::filesystem::is_regular_file(there, ignored)) return there;
      if (folder.empty() || folder == folder.parent_path()) break;
      folder = folder.parent_path();
    }
    return std::filesystem::path(from).is_relative() && std::filesystem::is_regular_file(from, ignored)
               ? found_above(path)
               : std::nullopt;
  }

  /// In one of the folders above the current one: "../../examples/ds.json".
  static std::optional<std::string> found_above(const std::string& path) {
    std::error_code ignored;
    std::filesystem::path up = "..";
    for (std::filesystem::path folder = std::filesystem::current_path(ignored); folder != folder.parent_path();
         folder = folder.parent_path(), up /= "..") {
      const std::string there = (up / path).string();
      if (std::filesystem::is_regular_file(there, ignored)) return there;
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
    draft_.derive(fact::kUnreadFile, reference.value);
    draft_.unmodelled.push_back(std::move(finding));
  }

  std::vector<ConfigFile> configs_;
  std::vector<Override> overrides_;
  bool is_changed_ = false;                                   // a file by what a command line overrides
  std::vector<std::pair<Finding, std::string>> accelerates_;  // with the file, "" where there is none
  Draft draft_;
  int last_number_ = 0;  // of the nodes that were read
};

}  // namespace

ImportedJob import_configs(const std::vector<std::string>& paths, const std::vector<std::string>& words,
                           const std::string& library, const std::string& model) {
  if (paths.empty() && words.empty())
    throw InputError("FILE: missing; name a configuration, or two that belong together");
  Importer importer;
  if (!library.empty()) importer.expect(library);
  if (!model.empty()) importer.ask_about(model);
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
  std::string text =
      fmt::format("vramfit estimate {} --gpus {} --stack {}", job.model.empty() ? "MODEL" : shell_quoted(job.model),
                  gpus.empty() ? "CLUSTER" : gpus, job.stack);
  for (const auto& [field, value] : job.fields)
    text += fmt::format(" {} {}", flag_of(job_field_named(field)), shell_quoted(value));
  if (job.is_ddp_on_several) text += " --sharding no-shard";   // on one GPU, nothing is sharded anyway
  if (!job.open_length.empty()) text += " --seq-len LONGEST";  // a default length would be another job's
  return text + (job.clips ? "" : " --no-clip");
}

}  // namespace vramfit
