#include "cli/rehearse/launcher_flags.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/suggest.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

using Words = std::vector<std::string>;

/// What follows a flag.
enum class Takes {
  nothing,
  a_value,      // that changes nothing here
  maybe_value,  // only as --flag=VALUE
  two_values,
  ranks,
  per_node,
  nodes,
  mapping,    // ppr:N:node
  variable,   // NAME or NAME=VALUE
  pair,       // NAME VALUE
  parameter,  // NAME VALUE, of Open MPI's own
  exports,    // ALL,NAME=VALUE,...
  folder,
};

struct FlagRow {
  std::string_view name;  // without dashes
  Takes takes;
};

// mpirun(1) of Open MPI 4.1 and 5.0; mpiexec --help of MPICH's Hydra 4.0, from which Intel MPI's and MVAPICH's derive.
constexpr auto kMpi = std::to_array<FlagRow>({
    {"n", Takes::ranks},
    {"np", Takes::ranks},
    {"c", Takes::ranks},
    {"N", Takes::per_node},
    {"npernode", Takes::per_node},
    {"ppn", Takes::per_node},
    {"perhost", Takes::per_node},
    {"grr", Takes::per_node},
    {"map-by", Takes::mapping},
    {"x", Takes::variable},
    {"env", Takes::pair},
    {"genv", Takes::pair},
    {"mca", Takes::parameter},
    {"gmca", Takes::parameter},
    {"omca", Takes::parameter},
    {"pmca", Takes::two_values},
    {"prtemca", Takes::two_values},
    {"wdir", Takes::folder},
    {"wd", Takes::folder},
    {"H", Takes::a_value},
    {"host", Takes::a_value},
    {"hosts", Takes::a_value},
    {"hostfile", Takes::a_value},
    {"machinefile", Takes::a_value},
    {"f", Takes::a_value},
    {"bind-to", Takes::a_value},
    {"rank-by", Takes::a_value},
    {"tmpdir", Takes::a_value},
    {"prefix", Takes::a_value},
    {"timeout", Takes::a_value},
    {"output-filename", Takes::a_value},
    {"output", Takes::a_value},
    {"display", Takes::a_value},
    {"report-uri", Takes::a_value},
    {"stdin", Takes::a_value},
    {"cpu-set", Takes::a_value},
    {"cpu-list", Takes::a_value},
    {"launcher", Takes::a_value},
    {"bootstrap", Takes::a_value},
    {"iface", Takes::a_value},
    {"rmk", Takes::a_value},
    {"genvlist", Takes::a_value},
    {"envlist", Takes::a_value},
    {"allow-run-as-root", Takes::nothing},
    {"oversubscribe", Takes::nothing},
    {"nooversubscribe", Takes::nothing},
    {"use-hwthread-cpus", Takes::nothing},
    {"tag-output", Takes::nothing},
    {"timestamp-output", Takes::nothing},
    {"merge-stderr-to-stdout", Takes::nothing},
    {"q", Takes::nothing},
    {"quiet", Takes::nothing},
    {"v", Takes::nothing},
    {"verbose", Takes::nothing},
    {"display-map", Takes::nothing},
    {"display-allocation", Takes::nothing},
    {"report-bindings", Takes::nothing},
    {"nolocal", Takes::nothing},
    {"bynode", Takes::nothing},
    {"byslot", Takes::nothing},
    {"bind-to-none", Takes::nothing},
    {"bind-to-core", Takes::nothing},
    {"bind-to-socket", Takes::nothing},
    {"enable-recovery", Takes::nothing},
    {"l", Takes::nothing},
    {"prepend-rank", Takes::nothing},
    {"print-rank-map", Takes::nothing},
    {"genvall", Takes::nothing},
    {"envall", Takes::nothing},
});

// srun(1) of Slurm 24.05; --container-* are those of the plugin Pyxis.
constexpr auto kSlurm = std::to_array<FlagRow>({
    {"n", Takes::ranks},
    {"ntasks", Takes::ranks},
    {"ntasks-per-node", Takes::per_node},
    {"tasks-per-node", Takes::per_node},
    {"N", Takes::nodes},
    {"nodes", Takes::nodes},
    {"D", Takes::folder},
    {"chdir", Takes::folder},
    {"export", Takes::exports},
    {"p", Takes::a_value},
    {"partition", Takes::a_value},
    {"A", Takes::a_value},
    {"account", Takes::a_value},
    {"t", Takes::a_value},
    {"time", Takes::a_value},
    {"J", Takes::a_value},
    {"job-name", Takes::a_value},
    {"c", Takes::a_value},
    {"cpus-per-task", Takes::a_value},
    {"cpus-per-gpu", Takes::a_value},
    {"G", Takes::a_value},
    {"gpus", Takes::a_value},
    {"gpus-per-node", Takes::a_value},
    {"gpus-per-task", Takes::a_value},
    {"ntasks-per-gpu", Takes::a_value},
    {"gres", Takes::a_value},
    {"gres-flags", Takes::a_value},
    {"mem", Takes::a_value},
    {"mem-per-cpu", Takes::a_value},
    {"mem-per-gpu", Takes::a_value},
    {"cpu-bind", Takes::a_value},
    {"mem-bind", Takes::a_value},
    {"gpu-bind", Takes::a_value},
    {"hint", Takes::a_value},
    {"o", Takes::a_value},
    {"output", Takes::a_value},
    {"e", Takes::a_value},
    {"error", Takes::a_value},
    {"i", Takes::a_value},
    {"input", Takes::a_value},
    {"w", Takes::a_value},
    {"nodelist", Takes::a_value},
    {"x", Takes::a_value},
    {"exclude", Takes::a_value},
    {"C", Takes::a_value},
    {"constraint", Takes::a_value},
    {"q", Takes::a_value},
    {"qos", Takes::a_value},
    {"m", Takes::a_value},
    {"distribution", Takes::a_value},
    {"mpi", Takes::a_value},
    {"jobid", Takes::a_value},
    {"reservation", Takes::a_value},
    {"comment", Takes::a_value},
    {"threads-per-core", Takes::a_value},
    {"network", Takes::a_value},
    {"container-image", Takes::a_value},
    {"container-mounts", Takes::a_value},
    {"container-workdir", Takes::a_value},
    {"container-name", Takes::a_value},
    {"container-env", Takes::a_value},
    {"K", Takes::maybe_value},
    {"kill-on-bad-exit", Takes::maybe_value},
    {"wait", Takes::a_value},
    {"W", Takes::a_value},
    {"exclusive", Takes::maybe_value},
    {"propagate", Takes::maybe_value},
    {"I", Takes::maybe_value},
    {"immediate", Takes::maybe_value},
    {"l", Takes::nothing},
    {"label", Takes::nothing},
    {"u", Takes::nothing},
    {"unbuffered", Takes::nothing},
    {"v", Takes::nothing},
    {"verbose", Takes::nothing},
    {"Q", Takes::nothing},
    {"quiet", Takes::nothing},
    {"O", Takes::nothing},
    {"overcommit", Takes::nothing},
    {"overlap", Takes::nothing},
    {"pty", Takes::nothing},
    {"s", Takes::nothing},
    {"oversubscribe", Takes::nothing},
    {"no-container-mount-home", Takes::nothing},
    {"container-mount-home", Takes::nothing},
    {"container-writable", Takes::nothing},
});

class Reader {
 public:
  Reader(LauncherKind kind, std::string_view name, const Words& words) : kind_(kind), name_(name), words_(words) {}

  LaunchRequest read() {
    while (at_ < words_.size() && words_[at_].starts_with("-") && words_[at_].size() > 1) {
      const std::string word = words_[at_++];
      if (word == "--") break;
      read_flag(word);
    }
    request_.program.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    if (request_.program.empty()) throw InputError(fmt::format("{}: no program follows its flags", name_));
    const bool several = kind_ != LauncherKind::slurm && std::ranges::find(words_, ":") != words_.end();
    if (several) throw InputError(fmt::format("{}: starts several programs (:), and one rank can be played", name_));
    return std::move(request_);
  }

 private:
  std::span<const FlagRow> table() const {
    return kind_ == LauncherKind::slurm ? std::span<const FlagRow>(kSlurm) : std::span<const FlagRow>(kMpi);
  }

  const FlagRow* find(std::string_view name) const {
    const auto rows = table();
    const auto row = std::ranges::find(rows, name, &FlagRow::name);
    return row == rows.end() ? nullptr : &*row;
  }

  /// "--nodes=2", "--nodes 2", "-N 2", "-N2"; MPI's long flags may begin with one dash.
  void read_flag(const std::string& word) {
    std::string name = word.substr(word.starts_with("--") ? 2 : 1);
    given_.reset();
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      given_ = name.substr(equals + 1);
      name.resize(equals);
    }
    const FlagRow* row = find(name);
    const bool is_glued = row == nullptr && !given_ && kind_ == LauncherKind::slurm && !word.starts_with("--");
    if (is_glued) {
      given_ = name.substr(1);
      row = find(name.substr(0, 1));
    }
    if (row == nullptr) {
      throw InputError(
          fmt::format("{} {}: a flag that vramfit does not know; leave it out, or rehearse the program "
                      "without {}",
                      name_, printable(word, 80), name_));
    }
    apply(row->takes, word);
  }

  std::string value(const std::string& flag) {
    if (given_) return *std::exchange(given_, std::nullopt);
    if (at_ == words_.size()) throw InputError(fmt::format("{} {}: its value is missing", name_, printable(flag, 80)));
    return words_[at_++];
  }

  std::int64_t number(const std::string& flag) {
    constexpr std::int64_t kMost = 1 << 24;
    try {
      return whole_number(value(flag), 1, kMost);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{} {}: {}", name_, printable(flag, 80), error.what()));
    }
  }

  void set(const std::string& assignment) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) return;  // passes on what is there
    request_.environment.emplace_back(assignment.substr(0, equals), assignment.substr(equals + 1));
  }

  void apply(Takes takes, const std::string& flag) {
    switch (takes) {
      case Takes::nothing:
      case Takes::maybe_value:
        return;
      case Takes::two_values:
        value(flag);
        [[fallthrough]];
      case Takes::a_value:
        value(flag);
        return;
      case Takes::ranks:
        request_.ranks = number(flag);
        return;
      case Takes::per_node:
        request_.per_node = number(flag);
        return;
      case Takes::nodes:
        request_.nodes = number(flag);
        return;
      case Takes::folder:
        request_.folder = value(flag);
        return;
      case Takes::variable:
        return set(value(flag));
      case Takes::mapping:
      case Takes::pair:
      case Takes::parameter:
      case Takes::exports:
        return apply_settings(takes, flag);
    }
  }

  void apply_settings(Takes takes, const std::string& flag) {
    const std::string first = value(flag);
    if (takes == Takes::mapping) {
      constexpr std::string_view kPerResource = "ppr:";
      const bool is_per_node = first.starts_with(kPerResource) && first.find(":node") != std::string::npos;
      if (is_per_node) request_.per_node = std::atoll(first.c_str() + kPerResource.size());
    } else if (takes == Takes::exports) {
      for (const std::string& each : split_list(first)) set(each);
    } else {
      request_.environment.emplace_back((takes == Takes::parameter ? "OMPI_MCA_" : "") + first, value(flag));
    }
  }

  LauncherKind kind_;
  std::string name_;
  const Words& words_;
  std::size_t at_ = 0;
  std::optional<std::string> given_;  // what stands in the flag's own word
  LaunchRequest request_;
};

}  // namespace

LaunchRequest read_launch(LauncherKind kind, std::string_view name, const std::vector<std::string>& words) {
  return Reader(kind, name, words).read();
}

}  // namespace vramfit
