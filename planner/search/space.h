// The space of a search as a tree: each row of planner/dimensions/ that the user left open is a level, and a complete
// job a leaf.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/dimensions/dimensions.h"
#include "planner/plan.h"

namespace vramfit {

/// Where in a space something is: the number of the base and of each level's choice. Levels that are open count as
/// their first choice, so a group's place is that of its first configuration.
struct Place {
  static constexpr std::size_t kMostLevels = 23;
  std::array<std::uint16_t, kMostLevels + 1> choices{};
  auto operator<=>(const Place&) const = default;
};

class Space {
 public:
  /// All choices of `base`, which is resolved first. Throws InputError when it contradicts itself. The request outlives
  /// the space.
  Space(const PlanRequest& request, Job base);

  const Job& base() const { return base_; }
  std::size_t levels() const { return rows_.size(); }
  const Dimension& row(std::size_t level) const { return *rows_[level]; }

  /// What a job becomes at a level, in the order of its row. Left out are jobs that contradict themselves (a reshard
  /// policy with no-shard) and those that the runtime has no rules for, as soon as that can be told.
  std::vector<Job> choices(const Job& job, std::size_t level) const;

  /// Whether a job of the levels before `level` can be bounded with what it leaves open.
  bool is_bounded(std::size_t level) const { return level >= bounded_from_; }
  OpenChoices open_from(std::size_t level) const { return open_from_[level]; }
  /// From this level on rows are simple: they leave alone what units_key() and ops_key() are made of.
  std::size_t simple_from() const { return simple_from_; }
  bool is_simple(std::size_t level) const { return level >= simple_from_; }
  /// From this level on rows change fragments alone: a job of the levels before it stands for them all.
  std::size_t fragments_from() const { return fragments_from_; }

  /// Leaves below a job of the levels before `level`. Where the rows are simple, those of jobs of equal kinds are
  /// counted once.
  std::int64_t count(const Job& job, std::size_t level);

  /// Leaves that differ from `job`, a leaf, in one row, and in later ones only where the same choice isn't left.
  std::vector<Job> neighbours(const Job& job) const;

 private:
  /// The job with the choices of `like` from a level on, the first one where that isn't there; none if it can't be.
  std::optional<Job> completed(Job job, std::size_t level, const Job& like) const;
  bool can_be(Job& job, std::size_t level) const;

  const PlanRequest& request_;
  SearchSpace space_;
  Job base_;
  std::vector<const Dimension*> rows_;
  std::vector<OpenChoices> open_from_;  // by level
  std::size_t settled_ = 0;             // the level from which on no row may contradict
  std::size_t bounded_from_ = 0, simple_from_ = 0, fragments_from_ = 0;
  std::map<std::pair<std::size_t, std::uint32_t>, std::int64_t> counts_;  // by level and kinds
};

/// Every leaf of the request's space in the order of the rows, for a space that is small. Throws InputError when the
/// job itself is contradictory.
std::vector<Job> enumerate_jobs(const PlanRequest& request);

/// Whether the runtime honours all that the job asks for.
bool has_rules(const Job& job, const Cluster& cluster);

}  // namespace vramfit
