// Results of a search's rehearsals in a file, for the next search.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/rehearse/once.h"
#include "cli/rehearse/search/search.h"

namespace vramfit {

class TrialCache {
 public:
  /// Reads what `path` holds; a file that is not there yet is empty, and "" keeps nothing. Throws InputError naming
  /// file and line.
  explicit TrialCache(std::string path);

  /// Without its point.
  std::optional<RehearsalTrial> find(const std::string& key) const;
  /// Also writes the file.
  void put(const std::string& key, const RehearsalTrial& trial);

 private:
  std::string path_, text_;
  std::unordered_map<std::string, RehearsalTrial> trials_;
};

/// Size and time of a file.
std::string stamp_of(const std::string& path);

/// The stamp of a file that is too large to be read, or what it holds; "" where there is no such file.
std::string contents_of(const std::string& path);

/// One word for a list of texts.
std::string key_of(const std::vector<std::string>& parts);

/// Equal if the words, the contents of the files that they name, the folder, the GPUs and all settings are equal.
/// Modules that a script imports are not part of it.
std::string trial_key(const RehearsalRequest& request, const std::vector<std::string>& command);

}  // namespace vramfit
