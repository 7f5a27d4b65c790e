#include "cli/configs/launch_prefix.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/rehearse/launchers/launcher_flags.h"

namespace vramfit {
namespace {

// Their own flags say nothing of the job.
constexpr std::array<std::string_view, 29> kStarters{
    "env",    "nohup", "time",     "sudo", "nice",       "ionice", "taskset", "numactl",   "stdbuf",     "timeout",
    "setsid", "exec",  "command",  "uv",   "poetry",     "pdm",    "pixi",    "pipenv",    "hatch",      "rye",
    "conda",  "mamba", "unbuffer", "nsys", "micromamba", "script", "chrt",    "apptainer", "singularity"};

struct Scheduler {
  std::string_view program;
  LauncherKind kind;
};
constexpr std::array kSchedulers{
    Scheduler{"srun", LauncherKind::slurm},
    Scheduler{"mpirun", LauncherKind::open_mpi},
    Scheduler{"mpiexec", LauncherKind::open_mpi},
};

const Scheduler* scheduler_of(const std::string& word) {
  const auto* const found = std::ranges::find(kSchedulers, file_name(word), &Scheduler::program);
  return found == kSchedulers.end() ? nullptr : found;
}

/// What it was asked for; nothing where its flags can't be read.
std::optional<LaunchRequest> request_of(const Scheduler& scheduler, const std::vector<ShellWord>& words,
                                        std::size_t after) {
  std::vector<std::string> texts;
  for (std::size_t i = after; i < words.size(); ++i) texts.push_back(words[i].text);
  try {
    return read_launch(scheduler.kind, scheduler.program, texts);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

class Reader {
 public:
  Reader(const std::vector<ShellWord>& words, const std::string& file) : words_(words), file_(file) {}

  LaunchPrefix read(const std::function<bool(std::size_t)>& begins_launch) {
    std::size_t launch = 0;
    while (launch < words_.size() && !begins_launch(launch)) ++launch;
    const bool is_found = launch < words_.size();
    while (at_ < launch) {
      const ShellWord& word = words_[at_];
      if (is_assignment(word.text)) {
        prefix_.environment.push_back(word);
      } else if (!is_found) {
        break;
      } else {
        skip(word);
      }
      ++at_;
    }
    prefix_.end = at_;
    return std::move(prefix_);
  }

 private:
  void skip(const ShellWord& word) {
    if (const Scheduler* scheduler = scheduler_of(word.text)) ask(*scheduler, word.line);
    if (prefix_.skipped.empty()) {
      prefix_.skipped.push_back({.file = file_,
                                 .line = word.line,
                                 .key = "before the launch",
                                 .value = word.text,
                                 .says = "starts what follows; its own words say nothing of the job"});
    } else {
      prefix_.skipped.back().value += " " + word.text;
    }
  }

  void ask(const Scheduler& scheduler, int line) {
    const std::optional<LaunchRequest> request = request_of(scheduler, words_, at_ + 1);
    if (!request) {
      put(prefix_.scheduler, "flags", text_node(scheduler.program, line));
      return;
    }
    const auto count = [&](std::string_view name, const std::optional<std::int64_t>& number) {
      if (number) put(prefix_.scheduler, name, text_node(fmt::to_string(*number), line));
    };
    count("nodes", request->nodes);
    count("ranks", request->ranks);
    count("per_node", request->per_node);
    for (const auto& [name, value] : request->environment) {
      prefix_.environment.push_back({.text = fmt::format("{}={}", name, value), .line = line});
    }
  }

  const std::vector<ShellWord>& words_;
  std::string file_;
  std::size_t at_ = 0;
  LaunchPrefix prefix_;
};

}  // namespace

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

bool starts_another(const std::string& word) {
  return scheduler_of(word) != nullptr || std::ranges::find(kStarters, file_name(word)) != kStarters.end();
}

LaunchPrefix read_launch_prefix(const std::vector<ShellWord>& words, const std::string& file,
                                const std::function<bool(std::size_t)>& begins_launch) {
  return Reader(words, file).read(begins_launch);
}

}  // namespace vramfit
