#include <array>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "job/cluster/cluster.h"
#include "model_specs/catalog.h"

namespace vramfit {
namespace {

// One flag of a command as completion needs it.
struct Flag {
  std::string name, help;
  std::vector<std::string> values;  // "full", "lora": what a person may choose from
  bool takes_value = false, takes_cluster = false;
};

struct Entry {
  std::string name, help;
  std::vector<Flag> flags;
  std::vector<std::string> words;  // what its first argument may be, besides a file
};

// "full|lora|qlora" -> its parts; of a pattern what comes before its capitals: "every:N" -> "every:".
std::vector<std::string> choices_of(const std::string& type_name) {
  std::vector<std::string> values;
  if (type_name.find('|') == std::string::npos || type_name.find('=') != std::string::npos) return values;
  for (const std::string& part : CLI::detail::split(type_name, '|')) {
    const std::string word = part.substr(0, part.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ["));
    if (!word.empty()) values.push_back(word);
  }
  return values;
}

std::vector<std::string> model_names() {
  std::vector<std::string> list;
  for (const CatalogEntry& entry : catalog()) list.emplace_back(entry.id);
  return list;
}

std::vector<std::string> card_names() {
  std::vector<std::string> list;
  for (const Card& card : card_catalog()) list.push_back(card.name);
  return list;
}

std::vector<std::string> command_names() {
  std::vector<std::string> list;
  for (const Command& command : commands()) list.emplace_back(command.name);
  return list;
}

// By the name of the argument in the command's help.
struct ArgumentWords {
  std::string_view argument;
  std::vector<std::string> (*words)();
};
constexpr std::array kArgumentWords{
    ArgumentWords{"MODEL", model_names},
    ArgumentWords{"CARD", card_names},
    ArgumentWords{"COMMAND", command_names},
    ArgumentWords{"SHELL",
                  [] {
                    return std::vector<std::string>{"bash", "zsh", "fish"};
                  }},
};

Entry entry_of(const CLI::App& command) {
  Entry entry{command.get_name(), command.get_description(), {}, {}};
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      entry.flags.push_back({"--" + name, option->get_description(), choices_of(option->get_type_name()),
                             option->get_items_expected_max() > 0, option->get_type_name() == "CLUSTER"});
    }
    const auto* const row = std::ranges::find(kArgumentWords, option->get_name(true, false), &ArgumentWords::argument);
    if (option->get_positional() && row != kArgumentWords.end()) entry.words = row->words();
  }
  return entry;
}

std::vector<Entry> entries() {
  int unused = 0;
  const std::unique_ptr<CLI::App> app = make_command_line(unused);
  std::vector<Entry> list;
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    list.push_back(entry_of(*command));
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

// What a shell calls for words that several flags share: "8x" and the like stay in front of a card's name.
std::string bash_functions() {
  return fmt::format(
      "_vramfit_models() {{ compgen -W \"{}\" -- \"$1\"; compgen -f -- \"$1\"; }}\n"
      "_vramfit_cards() {{\n  local count=\n  [[ $1 =~ ^([0-9]+x)+ ]] && count=${{BASH_REMATCH[0]}}\n"
      "  compgen -P \"$count\" -W \"{}\" -- \"${{1#\"$count\"}}\"\n}}\n",
      fmt::join(model_names(), " "), fmt::join(card_names(), " "));
}

// What to offer as the value of a flag; "" leaves the shell's files.
std::string bash_values(const Flag& flag) {
  if (flag.takes_cluster) return "$(_vramfit_cards \"$word\")";
  return flag.values.empty() ? "" : fmt::format("$(compgen -W \"{}\" -- \"$word\")", fmt::join(flag.values, " "));
}

std::string bash_arguments(const Entry& entry) {
  if (entry.words == model_names()) return "$(_vramfit_models \"$word\")";
  return entry.words.empty() ? "" : fmt::format("$(compgen -W \"{}\" -- \"$word\")", fmt::join(entry.words, " "));
}

std::string bash_script(const std::vector<Entry>& list) {
  std::string text = "# source <(vramfit completion bash)\n" + bash_functions() + "_vramfit() {\n";
  text += "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n";
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$word\")); return; fi\n",
      fmt::join(command_names(), " "));
  text += "  case \"$command $previous\" in\n";
  for (const Entry& entry : list) {
    for (const Flag& flag : entry.flags) {
      const std::string values = bash_values(flag);
      if (values.empty()) continue;
      text += fmt::format("    \"{} {}\") COMPREPLY=({}); return ;;\n", entry.name, flag.name, values);
    }
  }
  text += "  esac\n  if [[ $word != -* ]]; then\n    case \"$command $COMP_CWORD\" in\n";
  for (const Entry& entry : list) {
    if (const std::string words = bash_arguments(entry); !words.empty()) {
      text += fmt::format("      \"{} 2\") COMPREPLY=({}); return ;;\n", entry.name, words);
    }
  }
  text += "    esac\n    COMPREPLY=($(compgen -f -- \"$word\")); return\n  fi\n  case $command in\n";
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

std::string zsh_values(const Flag& flag) {
  if (flag.takes_cluster) return ":cluster:_vramfit_cards";
  return flag.values.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(flag.values, " "));
}

std::string zsh_script(const std::vector<Entry>& list) {
  std::string text = fmt::format(
      "#compdef vramfit\n_vramfit_cards() {{\n  local -a cards=({})\n"
      "  compset -P '([0-9]##x)##'\n  compadd -a cards\n}}\n_vramfit_words() {{ compadd \"$@\"; _files; }}\n",
      fmt::join(card_names(), " "));
  text += "_vramfit() {\n  setopt local_options extended_glob\n  local -a commands\n  commands=(\n";
  for (const Entry& entry : list) text += "    " + quoted(entry.name + ":" + zsh_text(entry.help)) + "\n";
  text += "  )\n  if ((CURRENT == 2)); then _describe command commands; return; fi\n  case $words[2] in\n";
  for (const Entry& entry : list) {
    text += fmt::format("    {}) _arguments", entry.name);
    for (const Flag& flag : entry.flags) {
      text += " \\\n      " +
              quoted(fmt::format("{}[{}]{}", flag.name, zsh_text(flag.help), flag.takes_value ? zsh_values(flag) : ""));
    }
    text += " \\\n      " + (entry.words.empty()
                                 ? "'*:file:_files'"
                                 : quoted(fmt::format("*:argument:_vramfit_words {}", fmt::join(entry.words, " "))));
    text += " ;;\n";
  }
  return text + "  esac\n}\ncompdef _vramfit vramfit\n";
}

std::string fish_values(const Flag& flag) {
  if (flag.takes_cluster) return " -f -a '(__vramfit_clusters)'";
  return flag.values.empty() ? "" : fmt::format(" -f -a {}", quoted(fmt::format("{}", fmt::join(flag.values, " "))));
}

std::string fish_script(const std::vector<Entry>& list) {
  std::string text = fmt::format(
      "# vramfit completion fish | source\nfunction __vramfit_clusters\n"
      "  set -l count (string match -r '^([0-9]+x)+' -- (commandline -ct))[1]\n"
      "  for card in {}\n    echo $count$card\n  end\nend\n",
      fmt::join(card_names(), " "));
  for (const Entry& entry : list) {
    text += fmt::format("complete -c vramfit -n __fish_use_subcommand -a {} -d {}\n", entry.name, quoted(entry.help));
    const std::string here = fmt::format("complete -c vramfit -n '__fish_seen_subcommand_from {}'", entry.name);
    if (!entry.words.empty()) {
      text += fmt::format("{} -a {}\n", here, quoted(fmt::format("{}", fmt::join(entry.words, " "))));
    }
    for (const Flag& flag : entry.flags) {
      text += fmt::format("{} -l {} -d {}{}{}\n", here, flag.name.substr(2), quoted(flag.help),
                          flag.takes_value ? " -r" : "", fish_values(flag));
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
