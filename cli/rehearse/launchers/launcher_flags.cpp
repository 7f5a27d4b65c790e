#include "cli/rehearse/launchers/launcher_flags.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/rehearse/launchers/launcher_flag_tables.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

using Words = std::vector<std::string>;

class Reader {
 public:
  Reader(LauncherKind kind, std::string_view name, const Words& words) : kind_(kind), name_(name), words_(words) {}

  LaunchRequest read() {
    while (at_ < words_.size() && words_[at_].starts_with("-") && words_[at_].size() > 1) {
      const std::string word = words_[at_++];
      if (word == "--") break;
      read_flag(word);
    }
    request_.program.insert(request_.program.end(), words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    if (request_.program.empty()) throw InputError(fmt::format("{}: no program follows its flags", name_));
    const bool several = !is_slurm() && std::ranges::find(words_, ":") != words_.end();
    if (several) throw InputError(fmt::format("{}: starts several programs (:), and one rank can be played", name_));
    return std::move(request_);
  }

 private:
  bool is_slurm() const { return kind_ == LauncherKind::slurm || kind_ == LauncherKind::slurm_batch; }

  static const FlagRow* find(std::string_view name, std::span<const FlagRow> rows) {
    const auto row = std::ranges::find(rows, name, &FlagRow::name);
    return row == rows.end() ? nullptr : &*row;
  }

  const FlagRow* find(std::string_view name) const {
    if (!is_slurm()) return find(name, kMpi);
    const FlagRow* const own = kind_ == LauncherKind::slurm_batch ? find(name, kBatch) : nullptr;
    return own == nullptr ? find(name, kSlurm) : own;
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
    const bool is_glued = row == nullptr && !given_ && is_slurm() && !word.starts_with("--");
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
    variable_ = row->variable;
    apply(row->takes, word);
  }

  std::string value(const std::string& flag) {
    const bool is_missing = !given_ && at_ == words_.size();
    if (is_missing) throw InputError(fmt::format("{} {}: its value is missing", name_, printable(flag, 80)));
    std::string found = given_ ? *std::exchange(given_, std::nullopt) : words_[at_++];
    if (!variable_.empty()) request_.environment.emplace_back(variable_, found);
    return found;
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
      case Takes::command:
        request_.program = {"/bin/sh", "-c", value(flag)};
        request_.is_wrapped = true;
        return;
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
  std::string_view variable_;         // of the flag that is read
  LaunchRequest request_;
};

}  // namespace

LaunchRequest read_launch(LauncherKind kind, std::string_view name, const std::vector<std::string>& words) {
  return Reader(kind, name, words).read();
}

}  // namespace vramfit
