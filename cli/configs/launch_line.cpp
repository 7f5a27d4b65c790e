#include "cli/configs/launch_line.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/launch_prefix.h"
#include "cli/configs/tools/launchers.h"

namespace vramfit {
namespace {

/// How the words behind a launcher are read.
enum class Words {
  script,         // a script's name, and flags for it
  recipe,         // of torchtune: a recipe's name, its configuration, key=value
  trl,            // flags of TRL and of accelerate's launcher
  llama_factory,  // a file and key=value, or flags
  axolotl,        // a file and flags, which are its keys with dashes
};

struct Launcher {
  std::string_view program, subcommand;  // "" where there is none
  const ConfigTool& (*tool)();           // what reads its flags; null: it has none of its own
  std::string_view switches;             // flags without a value, separated by spaces
  Words words = Words::script;
};

constexpr std::array kLaunchers{
    Launcher{"accelerate", "launch", accelerate_flags_tool,
             "multi_gpu use_deepspeed use_fsdp cpu tpu same_network debug module no_python use_xpu m quiet "
             "use_megatron_lm use_parallelism_config enable_cpu_affinity"},
    Launcher{"torchrun", "", torchrun_tool, "standalone module no_python m run_path"},
    Launcher{"torch.distributed.run", "", torchrun_tool, "standalone module no_python m run_path"},
    Launcher{"torch.distributed.launch", "", torchrun_tool, "standalone module no_python m use_env"},
    Launcher{"deepspeed", "", deepspeed_flags_tool,
             "no_python module no_local_rank no_ssh no_ssh_check force_multi save_pid"},
    Launcher{"tune", "run", torchrun_tool, "standalone", Words::recipe},
    Launcher{"trl", "sft", trl_program_tool, "", Words::trl},
    Launcher{"trl", "dpo", trl_program_tool, "", Words::trl},
    Launcher{"trl", "grpo", trl_program_tool, "", Words::trl},
    Launcher{"trl", "reward", trl_program_tool, "", Words::trl},
    Launcher{"llamafactory-cli", "train", nullptr, "", Words::llama_factory},
    Launcher{"axolotl", "train", nullptr, "", Words::axolotl},
    Launcher{"python", "", nullptr, "u m"},
    Launcher{"python3", "", nullptr, "u m"},
};

bool is_config_name(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json") || word.ends_with(".toml");
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_among(std::string_view name, std::string_view names) {
  while (!names.empty()) {
    const std::size_t space = std::min(names.find(' '), names.size());
    if (names.substr(0, space) == name) return true;
    names.remove_prefix(std::min(space + 1, names.size()));
  }
  return false;
}

const Launcher* launcher_at(const std::vector<ShellWord>& words, std::size_t at) {
  if (at >= words.size()) return nullptr;
  const std::string_view program = file_name(words[at].text);
  for (const Launcher& launcher : kLaunchers) {
    const bool is_next =
        launcher.subcommand.empty() || (at + 1 < words.size() && words[at + 1].text == launcher.subcommand);
    if (launcher.program == program && is_next) return &launcher;
  }
  return nullptr;
}

class Reader {
 public:
  Reader(const std::vector<ShellWord>& words, const std::string& file) : words_(words), file_(file) {}

  LaunchLine read(const std::vector<ShellWord>& environment) {
    read_prefix(environment);
    const Launcher* launcher = next_launcher();
    if (launcher == nullptr) {
      add_program(read_flags({}));
      return std::move(line_);
    }
    while (launcher->words == Words::script) {
      read_launcher(*launcher);
      const Launcher* const next = next_launcher();
      if (next == nullptr) {
        read_script();
        return std::move(line_);
      }
      launcher = next;
    }
    read_program(*launcher);
    return std::move(line_);
  }

 private:
  struct Flags {
    std::string_view switches = "";
    bool stops = false;      // at the first word that is neither a flag nor its value
    bool is_single = false;  // a flag has one value at most
  };

  void read_prefix(const std::vector<ShellWord>& environment) {
    const bool has_flags_alone = !words_.empty() && words_.front().text.starts_with('-');
    LaunchPrefix prefix = read_launch_prefix(
        words_, file_, [&](std::size_t at) { return has_flags_alone || launcher_at(words_, at) != nullptr; });
    at_ = prefix.end;
    ConfigNode variables;
    std::vector<ShellWord> assigned = environment;
    assigned.insert(assigned.end(), prefix.environment.begin(), prefix.environment.end());
    for (const ShellWord& word : assigned) {
      const std::size_t equals = word.text.find('=');
      put(variables, word.text.substr(0, equals), value_node({word.text.substr(equals + 1), word.line, word.is_plain}));
    }
    add_part(variables, environment_tool());
    add_part(prefix.scheduler, scheduler_tool());
    line_.ignored = std::move(prefix.skipped);
  }

  const Launcher* next_launcher() {
    const Launcher* launcher = launcher_at(words_, at_);
    if (launcher == nullptr) return nullptr;
    at_ += launcher->subcommand.empty() ? 1 : 2;
    if (line_.starter.empty() || line_.starter.starts_with("python")) line_.starter = launcher->program;
    return launcher;
  }

  void read_launcher(const Launcher& launcher) {
    ConfigNode flags = read_flags({.switches = launcher.switches, .stops = true, .is_single = true});
    if (launcher.tool != nullptr) line_.configs.push_back({file_, std::move(flags), &launcher.tool()});
  }

  void read_script() {
    const std::string script = at_ < words_.size() ? words_[at_++].text : "";
    if (script == "axolotl.cli.train") return read_axolotl("");
    add_program(read_flags({}));
  }

  void read_program(const Launcher& launcher) {
    names_files_ = true;
    switch (launcher.words) {
      case Words::script:
        return;
      case Words::recipe:
        return read_recipe(launcher);
      case Words::trl: {
        line_.program = &trainer_tool();
        ConfigNode flags = read_flags({});
        ConfigNode which;
        put(which, "trl", text_node(launcher.subcommand, 1));
        add_part(which, trl_program_tool());
        if (change_file(flags)) return;
        put(flags, "trl", text_node(launcher.subcommand, 1));
        line_.configs.push_back({file_, std::move(flags), &trainer_tool()});
        return;
      }
      case Words::llama_factory:
        line_.program = &llama_factory_tool();
        if (ConfigNode flags = read_flags({}); !flags.keys.empty()) {
          line_.configs.push_back({file_, std::move(flags), &llama_factory_tool()});
        }
        return;
      case Words::axolotl:
        return read_axolotl("accelerate");
    }
  }

  /// torchtune 0.6.1, _cli/run.py: with flags of torchrun a recipe is started by it.
  void read_recipe(const Launcher& launcher) {
    read_launcher(launcher);
    line_.program = &torchtune_tool();
    if (at_ < words_.size()) ++at_;  // the recipe
    const ConfigNode flags = read_flags({.is_single = true});
    const ConfigNode* name = find_in(flags, "config");
    if (name == nullptr) return add_part(flags, recipe_flags_tool());
    throw InputError(
        fmt::format("{}--config: {} is a configuration that torchtune brings, whose file isn't here; write it with "
                    "\"tune cp {} {}.yaml\" and name that",
                    place(file_, name->line), shown(*name), shown(*name), file_name(shown(*name))));
  }

  /// axolotl 0.19, cli/main.py: options have the names of keys, and what it has none for is its launcher's, like what
  /// stands behind two dashes.
  void read_axolotl(std::string starter) {
    names_files_ = true;
    line_.program = &axolotl_tool();
    ConfigNode own, launch;
    while (at_ < words_.size() && words_[at_].text != "--") {
      const ShellWord word = words_[at_++];
      if (!word.text.starts_with("--")) {
        take_word(word);
        continue;
      }
      const auto [key, value] = axolotl_option(word);
      if (key == "launcher") starter = starter.empty() ? starter : value.text;
      if (is_launch_argument(key) && !is_key_of_axolotl(key)) {
        put(launch, key, value_node(value));
      } else if (is_among(key, "launcher sweep cloud debug debug_text_only debug_num_examples prompter shard")) {
        put(own, key, value_node(value));
      } else {
        line_.overrides.push_back(override_of(key, value.text, value, file_));
      }
    }
    add_part(own, axolotl_options_tool());
    add_axolotls_launcher(starter, std::move(launch));
  }

  /// Names that both have are axolotl's.
  static bool is_key_of_axolotl(std::string_view key) {
    return key.starts_with("fsdp_") || is_among(key, "gradient_accumulation_steps debug");
  }

  std::pair<std::string, ShellWord> axolotl_option(const ShellWord& word) {
    const std::size_t equals = word.text.find('=');
    std::string key = word.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::ranges::replace(key, '-', '_');
    if (equals != std::string::npos) return {key, {word.text.substr(equals + 1), word.line, word.is_plain}};
    const bool names_file = is_among(key, "deepspeed sweep cloud accelerate_config config_file");
    const bool has_value =
        at_ < words_.size() && !words_[at_].text.starts_with("--") && (names_file || !is_config_name(words_[at_].text));
    if (has_value) return {key, words_[at_++]};
    const bool is_no = key.starts_with("no_");
    return {is_no ? key.substr(3) : key, {is_no ? "false" : "true", word.line}};
  }

  void add_axolotls_launcher(const std::string& starter, ConfigNode launch) {
    if (at_ < words_.size()) ++at_;  // the two dashes
    const auto* const row = std::ranges::find(kLaunchers, starter, &Launcher::program);
    const bool is_launcher = row != kLaunchers.end() && row->tool != nullptr;
    if (is_launcher) line_.starter = starter;
    const ConfigNode more = read_flags({.switches = is_launcher ? row->switches : "", .is_single = true});
    for (std::size_t i = 0; i < more.keys.size(); ++i) put(launch, more.keys[i], more.items[i]);
    add_part(launch, is_launcher ? row->tool() : accelerate_flags_tool());
  }

  ConfigNode read_flags(const Flags& how) {
    ConfigNode map;
    map.kind = ConfigNode::Kind::map;
    while (at_ < words_.size()) {
      const ShellWord& word = words_[at_];
      if (!word.text.starts_with('-') || word.text.size() < 2) {
        if (how.stops) return map;
        take_word(word);
        ++at_;
        continue;
      }
      ++at_;
      add_flag(map, word, how);
      if (how.stops && launcher_at(words_, at_) != nullptr) return map;
    }
    return map;
  }

  void add_flag(ConfigNode& map, const ShellWord& word, const Flags& how) {
    const std::size_t begin = std::min(word.text.find_first_not_of('-'), word.text.size());
    const std::string name = word.text.substr(begin);
    const std::size_t equals = name.find('=');
    std::string key = name.substr(0, equals);
    std::ranges::replace(key, '-', '_');
    if (key.empty()) return;
    if (equals != std::string::npos) {
      add(map, key, {ShellWord{name.substr(equals + 1), word.line, word.is_plain}}, word);
      return;
    }
    std::vector<ShellWord> values;
    while (!is_among(key, how.switches) && at_ < words_.size() && !words_[at_].text.starts_with("--")) {
      const std::string& next = words_[at_].text;
      const bool is_change = is_assignment(next) || next.starts_with('~');
      if (!values.empty() && is_change) break;  // of torchtune's configuration
      values.push_back(words_[at_++]);
      if (how.is_single) break;
    }
    add(map, key, values, word);
  }

  void add(ConfigNode& map, const std::string& key, const std::vector<ShellWord>& values, const ShellWord& flag) {
    ConfigNode node;
    node.line = flag.line;
    if (values.empty()) {  // a switch; HfArgumentParser has --no_NAME for those that are on by default
      const bool is_no = key.starts_with("no_");
      node.kind = ConfigNode::Kind::boolean;
      node.boolean = !is_no;
      node.text = is_no ? "false" : "true";
      if (key.find('.') != std::string::npos) return change(key, {node.text, flag.line});
      put(map, is_no ? key.substr(3) : key, node);
      return;
    }
    if (values.size() == 1) {
      node = value_node({values.front().text, flag.line, values.front().is_plain});
    } else {
      node.kind = ConfigNode::Kind::list;
      for (const ShellWord& value : values) node.items.push_back(text_node(value.text, flag.line));
    }
    const std::string last = key.substr(key.rfind('.') + 1);
    const bool may_name_file = last == "config";  // a script's own, or a recipe of torchtune
    const bool names_file =
        last == "config_file" ||
        (may_name_file &&
         (is_config_name(node.text) || (names_files_ && line_.program != &torchtune_tool()) || is_file(node.text)));
    if (names_file) {
      refer(last, node);
    } else if (key.find('.') != std::string::npos && values.size() == 1) {
      change(key, values.front());
    } else {
      put(map, key, std::move(node));
    }
  }

  /// A table's key, of torchtitan.
  void change(const std::string& key, const ShellWord& value) {
    line_.overrides.push_back(override_of(key, value.text, value, file_));
  }

  static ConfigNode value_node(const ShellWord& word) {
    ConfigNode node = text_node(word.text, word.line);
    if (!word.is_plain) node.text = fmt::format("{} (a variable of the shell)", node.text);
    return node;
  }

  void take_word(const ShellWord& word) {
    if (is_assignment(word.text)) {
      const std::size_t equals = word.text.find('=');
      line_.overrides.push_back(override_of(word.text.substr(0, equals), word.text.substr(equals + 1), word, file_));
    } else if (word.text.starts_with('~')) {
      const std::string key = word.text.substr(1, word.text.find('=') - 1);
      line_.overrides.push_back({.key = key, .value = {}, .is_removal = true});
      line_.overrides.back().value.line = word.line;
      line_.overrides.back().value.file = file_;
    } else if (is_config_name(word.text)) {
      refer("", value_node(word));
    } else {
      line_.ignored.push_back({.file = file_,
                               .line = word.line,
                               .key = "a word",
                               .value = word.text,
                               .says = "no flag's value as far as vramfit knows"});
    }
  }

  void refer(const std::string& key, const ConfigNode& node) {
    line_.references.push_back({.file = file_, .line = node.line, .key = key, .value = node.text, .says = {}});
  }

  /// HfArgumentParser's --config has defaults, which flags take the place of: what is assumed follows from both.
  bool change_file(const ConfigNode& flags) {
    if (std::ranges::find(line_.references, "config", &Finding::key) == line_.references.end()) return false;
    const std::vector<Override> changes = overrides_of(flags, file_);
    line_.overrides.insert(line_.overrides.end(), changes.begin(), changes.end());
    if (line_.program == nullptr) line_.program = &trainer_tool();
    return true;
  }

  void add_part(const ConfigNode& flags, const ConfigTool& tool) {
    if (!flags.keys.empty()) line_.configs.push_back({file_, flags, &tool});
  }
  void add_program(ConfigNode flags) {
    if (flags.keys.empty() || change_file(flags)) return;
    const ConfigTool* tool = tool_of(flags);
    line_.configs.push_back({file_, std::move(flags), tool == nullptr ? &trainer_tool() : tool});
  }

  const std::vector<ShellWord>& words_;
  std::string file_;
  std::size_t at_ = 0;
  bool names_files_ = false;  // --config is a file's name, whatever it ends with
  LaunchLine line_;
};

}  // namespace

bool is_launch_line(const std::vector<ShellWord>& words) {
  const auto first = std::ranges::find_if(words, [](const ShellWord& word) { return !is_assignment(word.text); });
  if (first == words.end()) return false;
  if (first->text.starts_with("--")) return true;
  const auto is_program = [](const ShellWord& word) {
    const std::string_view program = file_name(word.text);
    return std::ranges::any_of(kLaunchers, [&](const Launcher& row) { return row.program == program; });
  };
  return is_program(*first) || (starts_another(first->text) && std::any_of(first, words.end(), is_program));
}

LaunchLine read_launch_line(const std::vector<ShellWord>& words, const std::string& file,
                            const std::vector<ShellWord>& environment) {
  return Reader(words, file).read(environment);
}

}  // namespace vramfit
