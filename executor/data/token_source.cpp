#include "executor/data/token_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "executor/data/data.h"
#include "executor/data/npy_header.h"

namespace vramfit {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as little endian");

template <typename Integer>
void widen(const char* from, std::span<std::int64_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Integer id{};
    std::memcpy(&id, from + i * sizeof(Integer), sizeof(Integer));
    // An unsigned 64-bit id beyond the signed range becomes negative, which no vocabulary holds.
    ids[i] = static_cast<std::int64_t>(id);  // NOLINT(bugprone-signed-char-misuse): sign extension is meant
  }
}

void widen(IntegerFormat format, const char* from, std::span<std::int64_t> ids) {
  switch (format.bytes) {
    case 1:
      return format.is_signed ? widen<std::int8_t>(from, ids) : widen<std::uint8_t>(from, ids);
    case 2:
      return format.is_signed ? widen<std::int16_t>(from, ids) : widen<std::uint16_t>(from, ids);
    case 4:
      return format.is_signed ? widen<std::int32_t>(from, ids) : widen<std::uint32_t>(from, ids);
    default:
      return widen<std::int64_t>(from, ids);
  }
}

class TokenFile : public TokenSource {
 public:
  TokenFile(File file, IntegerFormat format, std::int64_t data_offset, std::int64_t vocab_size)
      : file_(std::move(file)),
        format_(format),
        data_offset_(data_offset),
        tokens_((file_.bytes() - data_offset) / format.bytes),
        vocab_size_(vocab_size) {}

  std::int64_t tokens() const override { return tokens_; }

  void read(std::int64_t first, std::span<std::int64_t> ids) const override {
    constexpr std::size_t kBlock = 8192;
    std::array<char, kBlock * 8> bytes;  // NOLINT(*-init): filled by the read
    for (std::size_t done = 0; done < ids.size(); done += kBlock) {
      const std::span<std::int64_t> block = ids.subspan(done, std::min(kBlock, ids.size() - done));
      const std::int64_t position = first + static_cast<std::int64_t>(done);
      file_.read(data_offset_ + position * format_.bytes,
                 std::span(bytes).first(block.size() * static_cast<std::size_t>(format_.bytes)));
      widen(format_, bytes.data(), block);
      check(position, block);
    }
  }

 private:
  void check(std::int64_t position, std::span<const std::int64_t> ids) const {
    const auto inside = [&](std::int64_t id) { return id >= 0 && id < vocab_size_; };
    const auto wrong = std::find_if_not(ids.begin(), ids.end(), inside);
    if (wrong == ids.end()) return;
    throw ModelError(
        fmt::format("data {}: token {} at position {} is outside the vocabulary of {}; check that the file "
                    "was made with this model's tokenizer, and --token-bytes",
                    printable(file_.path()), *wrong, position + (wrong - ids.begin()), vocab_size_));
  }

  File file_;
  IntegerFormat format_;
  std::int64_t data_offset_, tokens_, vocab_size_;
};

std::unique_ptr<TokenSource> open_npy(File file, std::int64_t vocab_size) {
  std::string start(static_cast<std::size_t>(std::min(file.bytes(), kLargestNpyHeader)), '\0');
  file.read(0, start);
  const NpyHeader header = parse_npy_header(start, file.path());
  const std::int64_t room = (file.bytes() - header.data_offset) / header.format.bytes;
  std::int64_t elements = 1;
  for (const std::int64_t dim : header.shape) {
    // Compared by division: a product of hostile sizes could overflow.
    if (dim != 0 && elements > room / dim) elements = room + 1;
    if (elements <= room) elements *= dim;
  }
  if (elements != room || (file.bytes() - header.data_offset) % header.format.bytes != 0) {
    throw InputError(
        fmt::format("data {}: the .npy header's shape {} {}-byte elements, the file has {}", printable(file.path()),
                    elements > room ? "needs more" : fmt::format("needs {}", elements), header.format.bytes, room));
  }
  return std::make_unique<TokenFile>(std::move(file), header.format, header.data_offset, vocab_size);
}

std::unique_ptr<TokenSource> open_bin(File file, const DataOptions& options) {
  constexpr std::int64_t kTwoByteIds = 65536;
  const int token_bytes = options.token_bytes != 0 ? options.token_bytes : (options.vocab_size <= kTwoByteIds ? 2 : 4);
  if (file.bytes() % token_bytes != 0) {
    throw InputError(fmt::format("data {}: its {} bytes are not a multiple of {}-byte tokens; see --token-bytes",
                                 printable(file.path()), file.bytes(), token_bytes));
  }
  return std::make_unique<TokenFile>(std::move(file), IntegerFormat{token_bytes, false}, 0, options.vocab_size);
}

class Joined : public TokenSource {
 public:
  explicit Joined(std::vector<std::unique_ptr<TokenSource>> sources) : sources_(std::move(sources)) {
    std::int64_t end = 0;
    for (const auto& source : sources_) ends_.push_back(end += source->tokens());
  }
  std::int64_t tokens() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(std::int64_t first, std::span<std::int64_t> ids) const override {
    auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
    while (!ids.empty()) {
      const std::int64_t begin = part == 0 ? 0 : ends_[part - 1];
      const std::size_t here = std::min(ids.size(), static_cast<std::size_t>(ends_[part] - first));
      sources_[part]->read(first - begin, ids.first(here));
      ids = ids.subspan(here);
      first += static_cast<std::int64_t>(here);
      ++part;
    }
  }

 private:
  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::vector<std::int64_t> ends_;
};

}  // namespace

std::unique_ptr<TokenSource> token_file(const std::string& path, const DataOptions& options) {
  File file(path, kDataFile);
  std::unique_ptr<TokenSource> source =
      path.ends_with(".npy") ? open_npy(std::move(file), options.vocab_size) : open_bin(std::move(file), options);
  std::vector<std::int64_t> ids(std::size_t{1} << 16U);
  const std::int64_t checked = std::min(source->tokens(), kCheckedTokens);
  for (std::int64_t done = 0; done < checked; done += std::ssize(ids)) {
    const std::int64_t here = std::min<std::int64_t>(std::ssize(ids), checked - done);
    source->read(done, std::span(ids).first(static_cast<std::size_t>(here)));
  }
  return source;
}

std::unique_ptr<TokenSource> joined(std::vector<std::unique_ptr<TokenSource>> sources) {
  return std::make_unique<Joined>(std::move(sources));
}

}  // namespace vramfit
