#include <array>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

// One flag of a command as completion needs it.
struct Flag {
  std::string name, help;
  std::vector<std::string> values;  // "full", "lora": what a person may choose from
  bool takes_value = false;
};

struct Entry {
  std::string name, help;
  std::vector<Flag> flags;
};

// "full|lora|qlora" -> its parts; patterns such as "size:N" are no words to complete.
std::vector<std::string> choices_of(const std::string& type_name) {
  std::vector<std::string> values;
  if (type_name.find('|') == std::string::npos) return values;
  for (const std::string& part : CLI::detail::split(type_name, '|')) {
    if (part.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ=") == std::string::npos) values.push_back(part);
  }
  return values;
}

std::vector<Entry> entries() {
  int unused = 0;
  const std::unique_ptr<CLI::App> app = make_command_line(unused);
  std::vector<Entry> list;
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    Entry entry{command->get_name(), command->get_description(), {}};
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        entry.flags.push_back({"--" + name, option->get_description(), choices_of(option->get_type_name()),
                               option->get_items_expected_max() > 0});
      }
    }
    list.push_back(std::move(entry));
  }
  return list;
}

// Text inside single quotes of a shell.
std::string quoted(std::string text) {
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

std::vector<std::string> names(const Entry& entry) {
  std::vector<std::string> list;
  list.reserve(entry.flags.size());
  for (const Flag& flag : entry.flags) list.push_back(flag.name);
  return list;
}

std::string bash_script(const std::vector<Entry>& list) {
  std::vector<std::string> commands;
  commands.reserve(list.size());
  for (const Entry& entry : list) commands.push_back(entry.name);
  std::string text = "# source <(vramfit completion bash)\n_vramfit() {\n";
  text += "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n";
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$word\")); return; fi\n",
      fmt::join(commands, " "));
  text += "  case \"$command $previous\" in\n";
  for (const Entry& entry : list) {
    for (const Flag& flag : entry.flags) {
      if (flag.values.empty()) continue;
      text += fmt::format("    \"{} {}\") COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return ;;\n", entry.name,
                          flag.name, fmt::join(flag.values, " "));
    }
  }
  text +=
      "  esac\n  if [[ $word != -* ]]; then COMPREPLY=($(compgen -f -- \"$word\")); return; fi\n  case $command in\n";
  for (const Entry& entry : list) {
    text += fmt::format("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")) ;;\n", entry.name,
                        fmt::join(names(entry), " "));
  }
  return text + "  esac\n}\ncomplete -o filenames -F _vramfit vramfit\n";
}

std::string zsh_text(std::string text) {
  for (const char special : {':', '[', ']'}) {
    for (std::size_t at = 0; (at = text.find(special, at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  }
  return text;
}

std::string zsh_script(const std::vector<Entry>& list) {
  std::string text = "#compdef vramfit\n_vramfit() {\n  local -a commands\n  commands=(\n";
  for (const Entry& entry : list) text += "    " + quoted(entry.name + ":" + zsh_text(entry.help)) + "\n";
  text += "  )\n  if ((CURRENT == 2)); then _describe command commands; return; fi\n  case $words[2] in\n";
  for (const Entry& entry : list) {
    text += fmt::format("    {}) _arguments", entry.name);
    for (const Flag& flag : entry.flags) {
      std::string spec = fmt::format("{}[{}]", flag.name, zsh_text(flag.help));
      if (flag.takes_value) {
        spec += flag.values.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(flag.values, " "));
      }
      text += " \\\n      " + quoted(spec);
    }
    text += " \\\n      '*:file:_files' ;;\n";
  }
  return text + "  esac\n}\ncompdef _vramfit vramfit\n";
}

std::string fish_script(const std::vector<Entry>& list) {
  std::string text = "# vramfit completion fish | source\n";
  for (const Entry& entry : list) {
    text += fmt::format("complete -c vramfit -n __fish_use_subcommand -a {} -d {}\n", entry.name, quoted(entry.help));
    for (const Flag& flag : entry.flags) {
      text += fmt::format(
          "complete -c vramfit -n '__fish_seen_subcommand_from {}' -l {} -d {}{}{}\n", entry.name, flag.name.substr(2),
          quoted(flag.help), flag.takes_value ? " -r" : "",
          flag.values.empty() ? "" : fmt::format(" -f -a {}", quoted(fmt::format("{}", fmt::join(flag.values, " ")))));
    }
  }
  return text;
}

std::string script_for(const std::string& shell) {
  if (shell == "bash") return bash_script(entries());
  if (shell == "zsh") return zsh_script(entries());
  if (shell == "fish") return fish_script(entries());
  throw InputError(
      fmt::format("shell \"{}\": unknown{}", printable(shell), did_you_mean(shell, {"bash", "zsh", "fish"})));
}

}  // namespace

void add_completion(CLI::App& command, int& exit_code) {
  const auto shell = std::make_shared<std::string>();
  command.add_option("SHELL", *shell, "bash, zsh or fish")->required();
  command.callback([shell, &exit_code] {
    write_file("-", script_for(*shell));
    exit_code = 0;
  });
}

}  // namespace vramfit
