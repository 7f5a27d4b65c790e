#include "model_specs/hub/cache.h"

#include <system_error>

#include "base/files/file.h"
#include "base/files/private_cache.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLongestRef = 256;

fs::path model_folder(const fs::path& root, const ModelId& id) {
  std::string name = "models--" + id.repo;
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) name.replace(slash, 1, "--");
  return root / name;
}

}  // namespace

std::optional<CachedFile> find_cached(const fs::path& root, const ModelId& id, const std::string& file) {
  if (root.empty()) return std::nullopt;
  const fs::path folder = model_folder(root, id);
  CachedFile found;
  std::error_code error;
  if (is_commit(id.revision)) {
    found.commit = id.revision;
  } else {
    const fs::path ref = folder / "refs" / id.revision;
    if (!fs::is_regular_file(ref, error)) return std::nullopt;
    found.commit = read_file(ref, kModelFile, kLongestRef);
    if (!is_commit(found.commit)) return std::nullopt;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(ref, error);
    found.age = std::chrono::duration_cast<std::chrono::seconds>(age);
  }
  found.path = folder / "snapshots" / found.commit / file;
  if (!fs::is_regular_file(found.path, error)) return std::nullopt;
  return found;
}

std::optional<CachedFile> find_kept(const fs::path& root, const ModelId& id, const std::string& file,
                                    std::string& why_not) {
  if (root.empty()) return std::nullopt;
  const fs::path folder = model_folder(root, id);
  std::string why = is_commit(id.revision) ? "" : why_not_trusted(root, folder / "refs" / id.revision);
  std::optional<CachedFile> found;
  if (why.empty()) found = find_cached(root, id, file);
  if (found) why = why_not_trusted(root, found->path);
  why_not = not_used_as_cache(root, why);
  return why.empty() ? found : std::nullopt;
}

std::string keep_in_cache(const fs::path& root, const ModelId& id, const std::string& commit, const std::string& file,
                          std::string_view text) {
  if (root.empty() || !is_commit(commit)) return "";
  const fs::path folder = model_folder(root, id);
  std::string why = keep_private(root, folder / "snapshots" / commit / file, text);
  if (why.empty() && !is_commit(id.revision)) why = keep_private(root, folder / "refs" / id.revision, commit);
  return not_used_as_cache(root, why);
}

}  // namespace vramfit
