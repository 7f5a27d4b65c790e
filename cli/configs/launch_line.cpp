#include "cli/configs/launch_line.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "cli/configs/tools/launchers.h"

namespace vramfit {
namespace {

struct Launcher {
  std::string_view program, subcommand;  // "" where there is none
  const ConfigTool& (*tool)();           // what reads its flags; null: it has none of its own
  std::string_view switches;             // flags without a value, separated by spaces
  bool has_script;
};

constexpr std::array kLaunchers{
    Launcher{"accelerate", "launch", accelerate_flags_tool,
             "multi_gpu use_deepspeed use_fsdp cpu tpu same_network debug module no_python use_xpu m quiet "
             "use_megatron_lm enable_cpu_affinity",
             true},
    Launcher{"torchrun", "", torchrun_tool, "standalone module no_python m run_path", true},
    Launcher{"torch.distributed.run", "", torchrun_tool, "standalone module no_python m run_path", true},
    Launcher{"torch.distributed.launch", "", torchrun_tool, "standalone module no_python m use_env", true},
    Launcher{"deepspeed", "", deepspeed_flags_tool,
             "no_python module no_local_rank no_ssh no_ssh_check force_multi save_pid", true},
    Launcher{"tune", "run", torchrun_tool, "standalone", true},
    Launcher{"trl", "sft", trl_program_tool, "", false},
    Launcher{"trl", "dpo", trl_program_tool, "", false},
    Launcher{"trl", "grpo", trl_program_tool, "", false},
    Launcher{"trl", "reward", trl_program_tool, "", false},
    Launcher{"llamafactory-cli", "train", nullptr, "", false},
    Launcher{"axolotl", "train", nullptr, "", false},
    Launcher{"python", "", nullptr, "u m", true},
    Launcher{"python3", "", nullptr, "u m", true},
};

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

/// NAME=value, or section.name=value.
bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

bool is_config_name(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json") || word.ends_with(".toml");
}

bool is_among(std::string_view name, std::string_view names) {
  while (!names.empty()) {
    const std::size_t space = std::min(names.find(' '), names.size());
    if (names.substr(0, space) == name) return true;
    names.remove_prefix(std::min(space + 1, names.size()));
  }
  return false;
}

class Reader {
 public:
  Reader(const std::vector<ShellWord>& words, const std::string& file) : words_(words), file_(file) {}

  LaunchLine read() {
    for (const Launcher* launcher = next_launcher(); launcher != nullptr; launcher = next_launcher()) {
      ConfigNode flags = read_flags(launcher->switches, launcher->has_script);
      if (launcher->program == "trl") put(flags, "trl", text_node(launcher->subcommand, 1));
      const bool is_program = !launcher->has_script;
      if (is_program && launcher->tool != nullptr) add_part(flags, launcher->tool());
      if (is_program) add_program(std::move(flags));
      if (is_program) return std::move(line_);
      if (launcher->tool != nullptr) add_part(flags, launcher->tool());
      if (next_is_launcher()) continue;
      if (at_ < words_.size()) ++at_;  // the script
      add_program(read_flags("", false));
      return std::move(line_);
    }
    add_program(read_flags("", false));
    return std::move(line_);
  }

 private:
  const Launcher* launcher_at(std::size_t at) const {
    if (at >= words_.size()) return nullptr;
    const std::string_view program = file_name(words_[at].text);
    for (const Launcher& launcher : kLaunchers) {
      const bool is_next =
          launcher.subcommand.empty() || (at + 1 < words_.size() && words_[at + 1].text == launcher.subcommand);
      if (launcher.program == program && is_next) return &launcher;
    }
    return nullptr;
  }
  bool next_is_launcher() const { return launcher_at(at_) != nullptr; }

  const Launcher* next_launcher() {
    while (at_ < words_.size() && is_assignment(words_[at_].text)) ++at_;
    const Launcher* launcher = launcher_at(at_);
    if (launcher != nullptr) at_ += launcher->subcommand.empty() ? 1 : 2;
    return launcher;
  }

  /// Flags with their values; up to the first word that is neither, if `stops`.
  ConfigNode read_flags(std::string_view switches, bool stops) {
    ConfigNode map;
    map.kind = ConfigNode::Kind::map;
    while (at_ < words_.size()) {
      const ShellWord& word = words_[at_];
      if (!word.text.starts_with('-') || word.text.size() < 2) {
        if (stops) return map;
        take_word(word);
        ++at_;
        continue;
      }
      ++at_;
      add_flag(map, word, switches, stops);
      if (stops && next_is_launcher()) return map;
    }
    return map;
  }

  void add_flag(ConfigNode& map, const ShellWord& word, std::string_view switches, bool single) {
    std::string name = word.text.substr(
        word.text.find_first_not_of('-') == std::string::npos ? word.text.size() : word.text.find_first_not_of('-'));
    const std::size_t equals = name.find('=');
    std::string key = name.substr(0, equals);
    std::ranges::replace(key, '-', '_');
    if (key.empty()) return;
    if (equals != std::string::npos) {
      add(map, key, {ShellWord{name.substr(equals + 1), word.line, word.is_plain}}, word.line);
      return;
    }
    std::vector<ShellWord> values;
    while (!is_among(key, switches) && at_ < words_.size() && !words_[at_].text.starts_with("--")) {
      if (!values.empty() && is_assignment(words_[at_].text)) break;  // of torchtune's configuration
      values.push_back(words_[at_++]);
      if (single) break;
    }
    add(map, key, values, word.line);
  }

  void add(ConfigNode& map, const std::string& key, const std::vector<ShellWord>& values, int line) {
    ConfigNode node;
    node.line = line;
    if (values.empty()) {  // a switch; HfArgumentParser has --no_NAME for those that are on by default
      const bool is_no = key.starts_with("no_");
      node.kind = ConfigNode::Kind::boolean;
      node.boolean = !is_no;
      node.text = is_no ? "false" : "true";
      put(map, is_no ? key.substr(3) : key, node);
      return;
    }
    if (values.size() == 1) {
      node = text_node(values.front().text, line);
      if (!values.front().is_plain) node.text = fmt::format("{} (a variable of the shell)", node.text);
    } else {
      node.kind = ConfigNode::Kind::list;
      for (const ShellWord& value : values) node.items.push_back(text_node(value.text, line));
    }
    const bool is_file = is_config_name(node.text) && (key == "config" || key == "config_file");
    if (is_file) refer(key, node);
    if (!is_file) put(map, key, std::move(node));
  }

  void take_word(const ShellWord& word) {
    if (is_assignment(word.text)) {
      const std::size_t equals = word.text.find('=');
      line_.overrides.emplace_back(word.text.substr(0, equals), text_node(word.text.substr(equals + 1), word.line));
    } else if (is_config_name(word.text)) {
      refer("", text_node(word.text, word.line));
    }
  }

  void refer(const std::string& key, const ConfigNode& node) {
    line_.references.push_back({.file = file_, .line = node.line, .key = key, .value = node.text, .says = {}});
  }

  void add_part(const ConfigNode& flags, const ConfigTool& tool) {
    if (!flags.keys.empty()) line_.configs.push_back({file_, flags, &tool});
  }
  void add_program(ConfigNode flags) {
    if (flags.keys.empty()) return;
    const ConfigTool* tool = tool_of(flags);
    line_.configs.push_back({file_, std::move(flags), tool == nullptr ? &trainer_tool() : tool});
  }

  const std::vector<ShellWord>& words_;
  std::string file_;
  std::size_t at_ = 0;
  LaunchLine line_;
};

}  // namespace

bool is_launch_line(const std::vector<ShellWord>& words) {
  const auto first = std::ranges::find_if(words, [](const ShellWord& word) { return !is_assignment(word.text); });
  if (first == words.end()) return false;
  if (first->text.starts_with("--")) return true;
  const std::string_view program = file_name(first->text);
  return std::ranges::any_of(kLaunchers, [&](const Launcher& row) { return row.program == program; });
}

LaunchLine read_launch_line(const std::vector<ShellWord>& words, const std::string& file) {
  return Reader(words, file).read();
}

}  // namespace vramfit
