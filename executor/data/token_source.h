// Token ids as one long sequence, whatever files they come from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace vramfit {

struct DataOptions;

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t tokens() const = 0;
  /// Ids from token `first` on; throws ModelError naming file and position for an id outside the vocabulary, also when
  /// the file changed since it was opened. Safe from several threads.
  virtual void read(std::int64_t first, std::span<std::int64_t> ids) const = 0;
};

/// A .bin or .npy file. Files up to kCheckedTokens are checked whole now, the rest of longer ones as it is read.
std::unique_ptr<TokenSource> token_file(const std::string& path, const DataOptions& options);
inline constexpr std::int64_t kCheckedTokens = std::int64_t{1} << 28;

/// The bytes of text files, one after the other. Throws InputError beyond 1 GiB.
std::unique_ptr<TokenSource> text_bytes(const std::vector<std::string>& files);

/// Sources one after the other.
std::unique_ptr<TokenSource> joined(std::vector<std::unique_ptr<TokenSource>> sources);

/// The *.md and *.txt files beneath `directory`, sorted by path. Links and names that start with '.' are left out;
/// throws InputError when none is there, or beyond 100,000 files and 32 levels.
std::vector<std::string> text_files(const std::string& directory);

}  // namespace vramfit
