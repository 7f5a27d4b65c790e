#include "cli/rehearse/launchers/launcher_shims.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"
#include "cli/launch/environment.h"
#include "cli/rehearse/launchers/batch_script.h"
#include "cli/rehearse/launchers/launcher_environment.h"
#include "cli/rehearse/launchers/launcher_flags.h"
#include "cli/rehearse/processes/environment.h"
#include "cli/rehearse/processes/program_file.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRank = "VRAMFIT_REHEARSAL_RANK";
constexpr const char* kFolder = "launchers";

struct Row {
  std::string_view name;
  std::optional<LauncherKind> kind;  // none: by what is installed
};
const std::array kLaunchers{
    Row{"mpirun", {}},
    Row{"mpiexec", {}},
    Row{"mpirun.openmpi", LauncherKind::open_mpi},
    Row{"mpiexec.openmpi", LauncherKind::open_mpi},
    Row{"orterun", LauncherKind::open_mpi},
    Row{"prterun", LauncherKind::open_mpi},
    Row{"mpirun.mpich", LauncherKind::mpich},
    Row{"mpiexec.mpich", LauncherKind::mpich},
    Row{"mpiexec.hydra", LauncherKind::mpich},
    Row{"srun", LauncherKind::slurm},
    Row{"sbatch", LauncherKind::slurm_batch},
};
// Batch scripts ask it for the names of their nodes.
constexpr const char* kHostNames = "scontrol";
constexpr const char* kInBatch = "VRAMFIT_REHEARSAL_BATCH";  // below our sbatch: what srun isn't told, the job says

std::string base_name(const std::string& path) { return fs::path(path).filename().string(); }

const Row* row_of(const std::string& name) {
  const Row* const row = std::ranges::find(kLaunchers, name, &Row::name);
  return row == kLaunchers.end() ? nullptr : row;
}

/// What a launcher of this name really is on this machine: "/usr/bin/orterun"; "" where there is none.
std::string installed(const std::string& word) {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  const bool has_folder = word.find('/') != std::string::npos;
  std::istringstream folders(has_folder ? fs::path(word).parent_path().string() : environment_value("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path real = fs::canonical(fs::path(folder) / base_name(word), error);
    if (!error && real != own && ::access(real.c_str(), X_OK) == 0) return real.string();
  }
  return "";
}

LauncherKind kind_of(const Row& row, const std::string& word) {
  if (row.kind) return *row.kind;
  const std::string real = installed(word);
  const bool is_hydra = real.find("hydra") != std::string::npos || real.find("mpich") != std::string::npos ||
                        real.find("mvapich") != std::string::npos || real.find("impi") != std::string::npos ||
                        real.find("intel") != std::string::npos;
  return is_hydra ? LauncherKind::mpich : LauncherKind::open_mpi;
}

std::map<std::string, std::string> rank_variables() {
  std::map<std::string, std::string> variables;
  std::istringstream items(environment_value(kRank));
  for (std::string item; items >> item;) {
    const std::size_t equals = item.find('=');
    if (equals != std::string::npos) variables[item.substr(0, equals)] = item.substr(equals + 1);
  }
  return variables;
}

LaunchedRank place_of(const std::map<std::string, std::string>& variables) {
  const auto number = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? 0 : std::atoll(found->second.c_str());
  };
  return {.rank = number("RANK"),
          .ranks = number("WORLD_SIZE"),
          .local = number("LOCAL_RANK"),
          .per_node = number("LOCAL_WORLD_SIZE"),
          .node = number("GROUP_RANK"),
          .nodes = number("GROUP_WORLD_SIZE")};
}

/// A launcher of each node's ranks, which then plays the rank.
bool starts_ranks_itself(const std::vector<std::string>& program) {
  constexpr std::array<std::string_view, 5> kNames{"torchrun", "accelerate", "deepspeed", "tune", "fabric"};
  return std::ranges::find(kNames, base_name(program[0])) != kNames.end() ||
         std::ranges::any_of(program, [](const std::string& word) { return word.starts_with("torch.distributed."); });
}

/// One process for each GPU, or one for each node.
LaunchedRank asked_place(const std::string& name, const LaunchRequest& asked, const LaunchedRank& of_gpu) {
  const LaunchedRank of_node{.rank = of_gpu.node,
                             .ranks = of_gpu.nodes,
                             .local = 0,
                             .per_node = 1,
                             .node = of_gpu.node,
                             .nodes = of_gpu.nodes};
  const auto agrees = [&](const LaunchedRank& place) {
    return asked.ranks.value_or(place.ranks) == place.ranks &&
           asked.per_node.value_or(place.per_node) == place.per_node &&
           asked.nodes.value_or(place.nodes) == place.nodes;
  };
  const bool by_node = starts_ranks_itself(asked.program);
  for (const LaunchedRank* place : {by_node ? &of_node : &of_gpu, by_node ? &of_gpu : &of_node}) {
    if (agrees(*place)) return *place;
  }
  const auto text = [](const std::optional<std::int64_t>& number) { return number ? fmt::to_string(*number) : "any"; };
  throw InputError(fmt::format(
      "{}: asks for {} ranks, {} of a node, on {} nodes, but --gpus has {} x {} GPUs. Change its numbers or "
      "--gpus, so that there is a rank for each GPU, or for each node",
      name, text(asked.ranks), text(asked.per_node), text(asked.nodes), of_gpu.nodes, of_gpu.per_node));
}

/// sbatch's own flags come after those in the script, and count.
LaunchRequest read_batch(const std::vector<std::string>& words) {
  constexpr std::string_view kName = "sbatch";
  LaunchRequest asked = read_launch(LauncherKind::slurm_batch, kName, words);
  if (asked.is_wrapped) return asked;
  const std::string path = fs::absolute(asked.program[0]).string();
  const BatchScript script = read_batch_script(path);
  std::vector<std::string> all = script.flags;
  all.insert(all.end(), words.begin(), words.end());
  asked = read_launch(LauncherKind::slurm_batch, kName, all);
  asked.program[0] = path;
  asked.program.insert(asked.program.begin(), script.interpreter.begin(), script.interpreter.end());
  return asked;
}

LaunchRequest read_request(LauncherKind kind, const std::string& name, const std::vector<std::string>& words) {
  if (kind == LauncherKind::slurm_batch) return read_batch(words);
  LaunchRequest asked = read_launch(kind, name, words);
  const auto of_job = [](const char* variable) -> std::optional<std::int64_t> {
    const std::int64_t number = std::atoll(environment_value(variable).c_str());
    return number > 0 ? std::optional(number) : std::nullopt;
  };
  if (kind != LauncherKind::slurm || environment_value(kInBatch).empty()) return asked;
  if (!asked.ranks && !asked.per_node) {
    asked.ranks = of_job("SLURM_NTASKS");
    asked.per_node = of_job("SLURM_NTASKS_PER_NODE");
  }
  return asked;
}

/// Those of a job in which vramfit itself runs.
void forget_outer_job() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("SLURM_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

[[noreturn]] void answer_scontrol(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool asks_names = words.size() >= 2 && words[0] == "show" && words[1].starts_with("hostname");
  if (!asks_names) throw InputError("scontrol: vramfit answers only `scontrol show hostnames [LIST]`");
  fmt::print("{}", host_names(words.size() > 2 ? words[2] : environment_value("SLURM_JOB_NODELIST")));
  std::exit(0);
}

void set_all(const EnvironmentChanges& changes) {
  for (const auto& [name, value] : changes) ::setenv(name.c_str(), value.c_str(), 1);
}

[[noreturn]] void become(const std::string& who, std::vector<std::string> words) {
  if (has_shim(words[0])) words[0] = base_name(words[0]);  // ours, which come first in PATH
  const std::string program = find_program(words[0]);
  restore_signals_for_child();
  ::execv(program.c_str(), pointers_to(words).data());
  throw InputError(fmt::format("{}: {} can't be started: {}", who, printable(words[0]), system_reason(errno)));
}

/// Ends the others once one has failed, as torchrun does.
int wait_for_all(std::vector<pid_t> processes) {
  int code = 0;
  while (!processes.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) break;
    if (std::erase(processes, ended) == 0) continue;
    const int own = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (own == 0 || code != 0) continue;
    code = own;
    for (const pid_t process : processes) ::kill(process, SIGTERM);
  }
  return code;
}

[[noreturn]] void start_all_ranks(const std::vector<std::string>& words) {
  const std::map<std::string, std::string> variables = rank_variables();
  const LaunchedRank place = place_of(variables);
  const int port = std::atoi(variables.at("MASTER_PORT").c_str());
  Cluster cluster;
  cluster.nodes = static_cast<int>(place.nodes);
  cluster.cards_per_node = static_cast<int>(place.per_node);
  std::vector<pid_t> processes;
  for (std::int64_t rank = 0; rank < place.ranks; ++rank) {
    const pid_t process = ::fork();
    if (process < 0) throw FaultError(fmt::format("{}: rank {} can't be started", kStartsAllRanks, rank));
    if (process > 0) {
      processes.push_back(process);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    set_all(rank_environment(cluster, rank, port));
    set_all({{"VRAMFIT_PHANTOM_NODE", fmt::to_string(rank / place.per_node)}});
    become(kStartsAllRanks, words);
  }
  ::_exit(wait_for_all(processes));
}

}  // namespace

bool has_shim(const std::string& command) { return row_of(base_name(command)) != nullptr; }

std::string make_launcher_shims(const std::string& session) {
  const fs::path folder = fs::path(session) / kFolder;
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (!error) fs::create_directory(folder, error);
  std::vector<std::string> names{kStartsAllRanks, kHostNames};
  for (const Row& row : kLaunchers) names.emplace_back(row.name);
  for (const std::string& name : names) {
    if (!error) fs::create_symlink(own, folder / name, error);
  }
  if (error) throw FaultError(fmt::format("{}: can't be made: {}", printable(folder.string()), error.message()));
  return folder.string();
}

bool is_started_as_launcher(const char* name) {
  if (name == nullptr) return false;
  const bool is_ours = has_shim(name) || base_name(name) == kStartsAllRanks || base_name(name) == kHostNames;
  return is_ours && !environment_value(kRank).empty();
}

void become_rank_of_launcher(int argc, char** argv) {
  const std::string word = argv[0], name = base_name(word);
  if (name == kStartsAllRanks) start_all_ranks({argv + 1, argv + argc});
  if (name == kHostNames) answer_scontrol(argc, argv);
  const LauncherKind kind = kind_of(*row_of(name), word);
  const LaunchRequest asked = read_request(kind, name, {argv + 1, argv + argc});
  const std::map<std::string, std::string> variables = rank_variables();
  const LaunchedRank place = asked_place(name, asked, place_of(variables));
  if (kind == LauncherKind::slurm_batch) forget_outer_job();
  set_all(asked.environment);
  // Whatever a script made of them: the store of the ghosts is where they say.
  set_all({variables.begin(), variables.end()});
  set_all(launcher_environment(kind, place));
  if (kind == LauncherKind::slurm_batch) set_all({{kInBatch, "1"}});
  if (!asked.folder.empty() && ::chdir(asked.folder.c_str()) != 0) {
    throw InputError(fmt::format("{}: can't start in {}: {}", name, printable(asked.folder), system_reason(errno)));
  }
  become(name, asked.program);
}

}  // namespace vramfit
