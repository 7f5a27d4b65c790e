// Files kept for later commands in a folder of the user's own, which is trusted only where nobody else can have
// written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace vramfit {

/// "" if `root`, the folders on the way to `path` below it and `path` itself, as far as they are there, belong to us,
/// others may not write to them, and none is a link; otherwise why not.
std::string why_not_trusted(const std::filesystem::path& root, const std::filesystem::path& path);

/// Keeps `text` at `path` below `root`, written aside and renamed; folders that are missing are made, for us alone.
/// Returns "" or why it wasn't kept: what why_not_trusted says, no space.
std::string keep_private(const std::filesystem::path& root, const std::filesystem::path& path, std::string_view text);

/// "ROOT isn't used as a cache: WHY"; "" if `why` is.
std::string not_used_as_cache(const std::filesystem::path& root, const std::string& why);

}  // namespace vramfit
