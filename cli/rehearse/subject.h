// What `vramfit rehearse` is asked for, and what is rehearsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/recipes/recipe_run.h"
#include "cli/rehearse/once.h"
#include "cli/rehearse/search/search.h"

namespace vramfit {

/// As they were given; "" where one was not.
struct RehearseFlags {
  std::string gpus, ranks = "all", timeout, settings, keep, output, snapshot, trace, cache, jobs, warm;
  bool json = false, strict_oom = false, band = false;
  std::vector<std::string> command, searches;
  RecipeFlags recipe;
};

/// CMD as it was given, or a recipe's script.
class Subject {
 public:
  Subject(const RehearseFlags& flags, const RehearsalRequest& request);
  std::vector<std::string> command(const SearchPoint& point) const;
  /// What keeps results of equal rehearsals together.
  std::vector<std::string> identity(const SearchPoint& point) const;
  std::vector<std::string> notes() const;
  std::string kept_session(const std::string& keep) const;
  /// Its script is another file for each point, and differs only in the values.
  bool is_recipe() const { return recipe_.has_value(); }

 private:
  const std::vector<std::string>& command_;
  std::optional<RecipeRun> recipe_;
};

bool plays_worst(const RehearseFlags& flags);

/// Throws InputError.
RehearsalRequest request_of(const RehearseFlags& flags);

/// Nothing: as many as cores and host memory allow. Throws InputError.
std::optional<int> jobs_of(const RehearseFlags& flags);

/// Flags of a search where there is none.
void refuse_search_flags(const RehearseFlags& flags);

/// Flags that ask for files of one rehearsal, where there are several.
void refuse_files(const RehearseFlags& flags, const char* several);

/// "bs=4: fits" on stderr.
void say_verdict(const RehearsalTrial& trial);

}  // namespace vramfit
