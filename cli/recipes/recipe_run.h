// A recipe made ready: its script and a model without weights in a folder, and the command that starts it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/recipes/recipe.h"
#include "cli/rehearse/processes/session_folder.h"
#include "cli/rehearse/search/search.h"
#include "job/cluster/cluster.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace vramfit {

/// What the user said of it. Values may hold the {NAME} of a search.
struct RecipeFlags {
  std::string name, model, python;
  RecipeValues values;  // "" where a flag was not given
};

/// --recipe, --python, and a flag for each choice that any recipe has.
void add_recipe_flags(CLI::App& command, RecipeFlags& flags);

/// The choices that were given. Throws InputError if there are any, or a Python, but no recipe.
RecipeValues given_values(const RecipeFlags& flags);

class RecipeRun {
 public:
  /// Checks recipe, choices, GPUs and libraries, and writes the model: a configuration, a tokenizer of bytes, and a
  /// sparse file of zeros. `keep` is the folder to leave everything in, or "". Throws Error.
  RecipeRun(const RecipeFlags& flags, const Cluster& cluster, std::optional<std::int64_t> played_rank,
            const std::string& keep);

  /// Writes the script with the values of `point` in their places; what starts it.
  std::vector<std::string> command(const SearchPoint& point) const;
  /// Equal words for equal rehearsals, whatever the folder is called.
  std::vector<std::string> identity(const SearchPoint& point) const;

  /// Where the session's folder is kept, or "".
  std::string kept_session() const;
  /// Every choice, and the libraries that were found.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  RecipeValues values_at(const SearchPoint& point) const;
  std::vector<std::string> words(const std::string& script) const;

  Recipe recipe_;
  RecipeValues values_;
  std::string python_, model_identity_;
  std::int64_t launched_;  // processes that torchrun starts; 0: none
  bool is_kept_;
  std::unique_ptr<SessionFolder> folder_;
  std::string libraries_;  // their versions, and the Python that has them
  std::string installed_;  // a hash of all that it has
  std::vector<std::string> notes_;
};

}  // namespace vramfit
