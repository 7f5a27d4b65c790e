#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/flags/flag_synonyms.h"
#include "cli/flags/help.h"

namespace vramfit {
namespace {

constexpr Command kProgram{
    "vramfit",
    "COMMAND [FLAGS]",
    "GPU memory of training jobs: estimate it before a run, find the fastest setup that fits, run it, compare.",
    {"vramfit estimate meta-llama/Llama-3.1-8B --gpus 8xH100-80GB", "vramfit plan Qwen/Qwen3-8B --gpus 4xRTX4090",
     "vramfit rehearse --gpus 8xH100-80GB -- torchrun --nproc-per-node 8 train.py"},
    nullptr};

constexpr std::array kCommands{
    Command{"estimate",
            "estimate MODEL [--gpus CLUSTER] [FLAGS]",
            "Memory that a training job needs per GPU, before it runs; without --gpus, which cards would hold it",
            {"vramfit estimate meta-llama/Llama-3.1-8B --gpus 8xH100-80GB",
             "vramfit estimate Qwen/Qwen3-8B --gpus 4xA100-40GB --seq-len 8192 --checkpointing full",
             "vramfit estimate meta-llama/Llama-3.2-1B"},
            add_estimate},
    Command{"plan",
            "plan MODEL --gpus CLUSTER [FLAGS]",
            "The fastest configuration of a job that fits, and why faster ones don't",
            {"vramfit plan meta-llama/Llama-3.2-1B --gpus 2xRTX4090 --global-batch 16 -o plan.json",
             "vramfit plan meta-llama/Llama-3.1-8B --gpus 4xRTX4090 --allow precision:bf16-pure",
             "vramfit plan Qwen/Qwen3-0.6B --gpus 1xRTX3090 --seq-len 2048 --checkpointing full"},
            add_plan},
    Command{"run",
            "run plan.json [FLAGS], or run MODEL --gpus CLUSTER [FLAGS]",
            "Train a plan, or a model with the flags of its job; without --data, on synthetic tokens",
            {"vramfit run plan.json --data corpus/ --steps 1000 --save checkpoints -o run.json",
             "vramfit run HuggingFaceTB/SmolLM2-135M --gpus 2xcpu-4GiB --seq-len 128 --steps 5",
             "vramfit run plan.json --device phantom --steps 2"},
            add_run},
    Command{"rehearse",
            "rehearse --gpus CLUSTER [FLAGS] -- CMD..., or rehearse --recipe NAME MODEL --gpus CLUSTER [FLAGS]",
            "Memory of any PyTorch or CUDA program on simulated GPUs; no GPU is needed",
            {"vramfit rehearse --gpus 8xH100-80GB -- torchrun --nproc-per-node 8 train.py",
             "vramfit rehearse --recipe trl-sft Qwen/Qwen3-8B --gpus 8xH100-80GB --micro-batch 2",
             "vramfit rehearse --gpus 64x8xH100-80GB --ranks 0 -- python fully_shard.py"},
            add_rehearse,
            true},
    Command{"compare",
            "compare plan.json run.json [FLAGS]",
            "Compare predicted with measured memory, phase by phase",
            {"vramfit compare plan.json run.json", "vramfit compare plan.json rehearsal.json --tolerance 5%",
             "vramfit compare plan.json run.json --json"},
            add_compare},
    Command{"explain",
            "explain FILE [MODEL --gpus CLUSTER] [FLAGS]",
            "Why memory ran out, from PyTorch's message in a log or from a memory snapshot; with MODEL, compared with "
            "the estimate of the job",
            {"vramfit explain train.log", "vramfit explain train.log --job sft.yaml --gpus 4xRTX4090",
             "vramfit explain snapshot.pickle Qwen/Qwen3-0.6B --gpus 1xRTX4090 --stack transformers"},
            add_explain},
    Command{"import",
            "import FILE [FILE...] [--json], or import -- CMD...",
            "Read a configuration of accelerate, transformers, TRL, DeepSpeed, torchtune, torchtitan, axolotl or "
            "LLaMA-Factory as a job",
            {"vramfit import accelerate.yaml sft.yaml", "vramfit import ds_config.json train.yaml --json",
             "vramfit import -- accelerate launch --config_file fsdp2.yaml sft.py --max_length 2048"},
            add_import,
            true},
    Command{"export",
            "export plan.json --to TOOL [-o DIR]",
            "Write a plan as a configuration of another tool, with the command that starts it and what the tool can't "
            "express",
            {"vramfit export plan.json --to trl -o run", "vramfit export plan.json --to accelerate",
             "vramfit export plan.json --to axolotl"},
            add_export},
    Command{"calibrate",
            "calibrate --gpus CLUSTER [FLAGS]",
            "Measure this machine's kernels, links and copies, in about two minutes; --calibration uses the file",
            {"vramfit calibrate --gpus 8xH100-80GB -o figures.json", "vramfit calibrate --gpus 2xcpu-4GiB --seconds 10",
             "vramfit calibrate --gpus 1xRTX4090 --json"},
            add_calibrate},
    Command{"merge",
            "merge BASE ADAPTERS -o DIR",
            "Put LoRA adapters into the weights of their model, file by file",
            {"vramfit merge llama adapters -o merged", "vramfit merge llama/model.safetensors adapters -o merged"},
            add_merge},
    Command{"models",
            "models [MODEL] [--json]",
            "List the built-in models, or show one",
            {"vramfit models", "vramfit models meta-llama/Llama-3.1-8B", "vramfit models --json"},
            add_models},
    Command{"fake-weights",
            "fake-weights MODEL DIR [--dtype DTYPE] [--tokenizer]",
            "Write a checkpoint of zeros that transformers loads and that takes no disk space",
            {"vramfit fake-weights Qwen/Qwen3-8B checkpoint", "vramfit fake-weights gpt2 gpt2-zeros --dtype fp32",
             "vramfit fake-weights meta-llama/Llama-3.1-8B llama --tokenizer"},
            add_fake_weights},
    Command{"gpus",
            "gpus [CARD] [--json]",
            "List the known GPUs, or show one",
            {"vramfit gpus", "vramfit gpus H100-80GB", "vramfit gpus --json"},
            add_gpus},
    Command{"program",
            "program MODEL --gpus CLUSTER [FLAGS]",
            "Print every instruction of a training step on rank 0: what is allocated, computed, sent and freed",
            {"vramfit program HuggingFaceTB/SmolLM2-135M --gpus 2xRTX4090",
             "vramfit program meta-llama/Llama-3.1-8B --gpus 8xH100-80GB --checkpointing full | less",
             "vramfit program Qwen/Qwen3-0.6B --gpus 4xA100-40GB --grad-accum 4"},
            add_program},
    Command{"doctor",
            "doctor [--python PATH]",
            "Show what this machine has and lacks, and whether a Python's torch can be rehearsed",
            {"vramfit doctor", "vramfit doctor --python .venv/bin/python"},
            add_doctor},
    Command{"completion",
            "completion bash|zsh|fish",
            "Print a completion script for a shell",
            {"source <(vramfit completion bash)", "vramfit completion zsh > ~/.zfunc/_vramfit",
             "vramfit completion fish | source"},
            add_completion},
    Command{"help",
            "help [COMMAND]",
            "Show help, for all commands or for one",
            {"vramfit help", "vramfit help estimate", "vramfit help run"},
            add_help},
    Command{"version", "version", "Print the version", {"vramfit version"}, add_version},
};

// Every long flag of the commands that were being parsed, and the commands themselves.
std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> words;
  const auto parsed = app.get_subcommands();
  const CLI::App& innermost = parsed.empty() ? app : *parsed.front();
  for (const CLI::Option* option : innermost.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  for (const CLI::App* command : innermost.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(command->get_name());
  }
  return words;
}

std::string unexpected_word(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::App* inner : command->get_subcommands()) {
      if (inner->remaining_size() > 0) return inner->remaining().front();
    }
    if (command->remaining_size() > 0) return command->remaining().front();
  }
  return app.remaining_size() > 0 ? app.remaining().front() : "";
}

/// "--precision: given 2 times (bf16-mixed, fp16-mixed); give it once": where that is the error; else "".
/// `arguments` are in CLI11's order.
std::string repeated_text(const CLI::ParseError& error, std::span<const std::string> arguments) {
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return "";
  const std::string_view what = error.what();
  const std::string flag(what.substr(0, what.find(':')));
  std::vector<std::string> values;
  for (std::size_t i = arguments.size(); i-- > 0;) {
    if (arguments[i] == flag && i > 0) values.push_back(printable(arguments[i - 1]));
    if (arguments[i].starts_with(flag + "=")) values.push_back(printable(arguments[i].substr(flag.size() + 1)));
  }
  if (values.size() < 2) return "";
  return fmt::format("{}: given {} times ({}); give it once", flag, values.size(), fmt::join(values, ", "));
}

[[noreturn]] void report(const CLI::App& app, const CLI::ParseError& error, std::span<const std::string> arguments) {
  if (const std::string text = repeated_text(error, arguments); !text.empty()) throw InputError(text);
  const auto parsed = app.get_subcommands();
  const std::string help =
      fmt::format("; see \"vramfit {}--help\"", parsed.empty() ? "" : parsed.front()->get_name() + " ");
  const std::string word = unexpected_word(app);
  if (!word.empty()) {
    const std::string name = word.substr(0, word.find('='));
    const bool flag = word.starts_with("-");
    const bool command = parsed.empty() && !flag;
    if (const std::string hint = hint_for_flag(name); !hint.empty()) {
      throw InputError(fmt::format("{}: unknown flag{}", printable(name), hint));
    }
    const std::string nearest = nearest_name(name, known_words(app));
    throw InputError(fmt::format("{}: unknown {}{}{}", printable(name),
                                 command ? "command"
                                 : flag  ? "flag"
                                         : "argument",
                                 nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest),
                                 nearest.empty() ? help : ""));
  }
  throw InputError(printable(error.what()) + help);
}

/// What is read differently from what was typed.
void say_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) complain("vramfit", note);
}

/// An unset variable of the shell leaves an empty value, which CLI11 takes for a flag that was not given, or it takes
/// the next word instead.
void refuse_empty(std::span<const std::string> arguments) {
  std::string_view before;
  for (const std::string& argument : arguments) {
    if (argument == "--") return;  // what follows are another program's
    const bool ends_empty = argument.starts_with("--") && argument.ends_with('=');
    const std::string_view flag = ends_empty ? std::string_view(argument).substr(0, argument.size() - 1) : before;
    if (argument.empty() || ends_empty) {
      throw InputError(flag.starts_with('-') ? fmt::format("{}: the value is empty", printable(flag))
                                             : "an argument is empty");
    }
    before = argument;
  }
}

/// Without flags that say once more what an earlier one says, as a pasted "Flags:" line behind typed flags does. A flag
/// that may be repeated is left alone.
std::vector<std::string> without_equal_repeats(const CLI::App& command, const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  std::vector<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {
      kept.insert(kept.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const std::size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const CLI::Option* const option = name.starts_with("--") ? command.get_option_no_throw(name) : nullptr;
    const bool has_one = option != nullptr && option->get_expected_min() == 1 &&
                         option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw;
    const bool is_apart = has_one && equals == std::string::npos;
    if (!has_one || (is_apart && i + 1 == words.size())) {
      kept.push_back(words[i]);
      continue;
    }
    const std::pair given(name, is_apart ? words[i + 1] : words[i].substr(equals + 1));
    const bool is_repeat = std::ranges::find(seen, given) != seen.end();
    if (!is_repeat) {
      seen.push_back(given);
      kept.push_back(words[i]);
      if (is_apart) kept.push_back(words[i + 1]);
    }
    if (is_apart) ++i;
  }
  return kept;
}

/// The arguments in CLI11's order, last first: flags by our names, and words that are not ours marked.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const auto* command = std::ranges::find(kCommands, arguments.empty() ? "" : arguments.front(), &Command::name);
  if (command != kCommands.end()) {
    std::vector<std::string> notes;
    const CLI::App& parsed = *app.get_subcommand(std::string(command->name));
    arguments = without_equal_repeats(parsed, with_known_flags(parsed, arguments, notes));
    say_notes(notes);
  }
  refuse_empty(arguments);
  if (command != kCommands.end() && command->takes_words) {
    const auto dashes = std::ranges::find(arguments, "--");
    if (dashes != arguments.end()) {
      std::for_each(dashes + 1, arguments.end(), [](std::string& word) { word.insert(0, 1, kWordMark); });
      arguments.erase(dashes);  // CLI11 takes no words after two dashes if there were some before them
    }
  }
  std::ranges::reverse(arguments);
  return arguments;
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

const Command& whole_program() { return kProgram; }

std::string version_text() { return "vramfit " VRAMFIT_VERSION; }

std::unique_ptr<CLI::App> make_command_line(int& exit_code, std::span<const std::string_view> words) {
  auto app = std::make_unique<CLI::App>(std::string(kProgram.summary), std::string(kProgram.name));
  app->formatter(help_formatter());
  app->set_help_flag("-h,--help", "Show this help");
  app->set_version_flag("--version", version_text, "Print the version");
  app->require_subcommand(0, 1);
  for (const Command& command : kCommands) {
    CLI::App* added = app->add_subcommand(std::string(command.name), std::string(command.summary));
    if (words.empty() || std::ranges::find(words, command.name) != words.end()) command.add(*added, exit_code);
  }
  return app;
}

int run_command_line(int argc, char** argv) {
  int exit_code = 0;
  std::vector<std::string_view> words(argv + std::min(argc, 1), argv + argc);
  const bool names_command =
      !words.empty() && std::ranges::find(kCommands, words.front(), &Command::name) != kCommands.end();
  if (!names_command) words.clear();  // whatever the first word is, all flags may be asked for
  const std::unique_ptr<CLI::App> app = make_command_line(exit_code, words);
  std::vector<std::string> arguments;
  try {
    arguments = arguments_of(*app, argc, argv);
    app->parse(std::vector<std::string>(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {  // --help or --version
      std::ostringstream text;
      app->exit(error, text, text);
      write_file("-", text.str());
      return 0;
    }
    report(*app, error, arguments);
  }
  if (app->get_subcommands().empty()) {
    write_file("-", app->help());
    return static_cast<int>(ExitCode::usage);
  }
  return exit_code;
}

}  // namespace vramfit
