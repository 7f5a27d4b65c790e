// Answers of rehearsed recipes, kept for the next time that the same is asked.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/recipes/recipe_run.h"
#include "cli/rehearse/once.h"

namespace vramfit {

/// What a rehearsal found, as it is printed.
struct ExactAnswer {
  RehearsalVerdict verdict = RehearsalVerdict::failed;
  std::string text, json;  // rehearsal_text, rehearsal_to_json
};

/// A file for each question in `folder`, in which only we can have written; otherwise it isn't used, and notes say why.
class ExactCache {
 public:
  explicit ExactCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// The answer to a question; none if it wasn't asked before, or what is there isn't whole or isn't trusted.
  std::optional<ExactAnswer> find(const std::string& key);
  void put(const std::string& key, const ExactAnswer& answer);

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::filesystem::path path_of(const std::string& key) const { return folder_ / (key + ".json"); }
  void note(const std::string& why);

  std::filesystem::path folder_;
  std::vector<std::string> notes_;
};

/// $VRAMFIT_CACHE/exact or what stands for it; empty: nowhere.
std::filesystem::path exact_cache_folder();

/// Equal if the script, the model's configuration, the names and versions of all that the Python has, the GPUs, the
/// variables of the environment that libraries read, and this program are equal. What was changed inside an installed
/// library, with its version kept, is not seen.
std::string exact_key(const RehearsalRequest& request, const RecipeRun& run, const std::string& model);

}  // namespace vramfit
