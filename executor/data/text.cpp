#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "executor/data/token_source.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 100'000;
constexpr std::size_t kMostEntries = 1'000'000;
constexpr int kMostLevels = 32;
constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 30;

class TextBytes : public TokenSource {
 public:
  explicit TextBytes(std::string text) : text_(std::move(text)) {}
  std::int64_t tokens() const override { return std::ssize(text_); }
  void read(std::int64_t first, std::span<std::int64_t> ids) const override {
    const auto* from = text_.data() + first;
    std::transform(from, from + ids.size(), ids.begin(), [](char c) { return static_cast<unsigned char>(c); });
  }

 private:
  std::string text_;
};

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw InputError(fmt::format("data {}: {}", printable(path), why));
}

bool is_text(const fs::path& path) { return path.extension() == ".md" || path.extension() == ".txt"; }

}  // namespace

std::unique_ptr<TokenSource> text_bytes(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& path : files) {
    const File file(path, kDataFile);
    if (file.bytes() > kMostTextBytes - std::ssize(text)) {
      fail(path, "more than 1 GiB of text; tokenize it into a .bin file first");
    }
    const std::size_t before = text.size();
    text.resize(before + static_cast<std::size_t>(file.bytes()));
    file.read(0, std::span(text).subspan(before));
  }
  return std::make_unique<TextBytes>(std::move(text));
}

std::vector<std::string> text_files(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  // Links are neither entered nor read: they could lead out of the directory, or in a circle.
  fs::recursive_directory_iterator entry(directory, fs::directory_options::skip_permission_denied, error);
  std::size_t entries = 0;
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (++entries > kMostEntries || files.size() >= kMostFiles) {
      fail(directory, "too many files; name a smaller directory, or a .bin file");
    }
    const fs::file_status status = entry->symlink_status(error);
    const bool hidden = entry->path().filename().native().starts_with('.');
    if (hidden || entry.depth() >= kMostLevels) entry.disable_recursion_pending();
    if (!hidden && fs::is_regular_file(status) && is_text(entry->path())) files.push_back(entry->path().string());
  }
  if (error) fail(directory, error.message());
  if (files.empty()) fail(directory, "contains no *.md or *.txt file (links are not followed)");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace vramfit
