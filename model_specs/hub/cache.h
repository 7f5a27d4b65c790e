// Folders laid out as huggingface_hub's cache: models--ORG--NAME/{refs/REVISION, snapshots/COMMIT/FILE}.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "model_specs/hub/model_id.h"

namespace vramfit {

struct CachedFile {
  std::filesystem::path path;
  std::string commit;
  std::chrono::seconds age{};  // since the revision was last looked up; 0 for a commit, which never changes
};

/// The file of a model in the cache at `root`, if it is there.
std::optional<CachedFile> find_cached(const std::filesystem::path& root, const ModelId& id, const std::string& file);

/// The same in a cache of our own, which is trusted only where nobody else can have written: `root`, the folders on the
/// way and the file belong to us, others may not write to them, and none is a link. Otherwise `why_not` says so.
std::optional<CachedFile> find_kept(const std::filesystem::path& root, const ModelId& id, const std::string& file,
                                    std::string& why_not);

/// Keeps a file in a cache of our own, written aside and renamed. Returns "" or why it wasn't kept: what find_kept does
/// not trust, no space.
std::string keep_in_cache(const std::filesystem::path& root, const ModelId& id, const std::string& commit,
                          const std::string& file, std::string_view text);

}  // namespace vramfit
