#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/data/data.h"
#include "executor/data/masking.h"
#include "executor/data/row_order.h"
#include "executor/data/token_source.h"

namespace vramfit {
namespace {

constexpr std::int64_t kByteValues = 256;
constexpr std::int64_t kBertMaskId = 103;  // [MASK] in the vocabularies of bert-base-uncased and bert-base-cased

class Rows : public Dataset {
 public:
  Rows(std::unique_ptr<TokenSource> tokens, const DataOptions& options, std::int64_t mask_id)
      : tokens_(std::move(tokens)),
        rows_((tokens_->tokens() - 1) / options.sequence),
        sequence_(options.sequence),
        vocab_size_(options.vocab_size),
        mask_id_(mask_id),
        seed_(options.seed),
        masked_lm_(options.masked_lm) {}

  std::int64_t rows() const override { return rows_; }

  void row(std::int64_t index, std::span<std::int64_t> ids, std::span<std::int64_t> labels) const override {
    const std::int64_t first = file_row(index, rows_, seed_) * sequence_;
    tokens_->read(first, ids);
    if (masked_lm_) {
      RowMask(seed_, index, sequence_).apply(mask_id_, vocab_size_, ids, labels);
      return;
    }
    std::copy(ids.begin() + 1, ids.end(), labels.begin());
    tokens_->read(first + sequence_, labels.last(1));
  }

  std::int64_t label_tokens(std::int64_t index) const override {
    return masked_lm_ ? RowMask(seed_, index, sequence_).label_tokens() : sequence_;
  }

 private:
  std::unique_ptr<TokenSource> tokens_;
  std::int64_t rows_, sequence_, vocab_size_, mask_id_;
  std::uint64_t seed_;
  bool masked_lm_;
};

enum class Kind { tokens, text };

Kind kind_of(const std::string& path) {
  const std::filesystem::path extension = std::filesystem::path(path).extension();
  if (extension == ".bin" || extension == ".npy") return Kind::tokens;
  if (extension == ".md" || extension == ".txt") return Kind::text;
  throw InputError(
      fmt::format("data {}: unknown kind of file; expected .bin or .npy (token ids), .txt or .md (text as "
                  "bytes), or a directory of text",
                  printable(path)));
}

void check(const DataOptions& options) {
  if (options.paths.empty()) throw InputError("no data given; name a file or directory with --data");
  if (options.sequence < 1) throw InputError(fmt::format("data: a sequence of {} tokens", options.sequence));
  if (options.vocab_size < 1) throw InputError(fmt::format("data: a vocabulary of {}", options.vocab_size));
  if (options.token_bytes != 0 && options.token_bytes != 2 && options.token_bytes != 4) {
    throw InputError(fmt::format("--token-bytes {}: expected 2 or 4", options.token_bytes));
  }
}

struct Opened {
  std::vector<std::unique_ptr<TokenSource>> sources;
  bool has_text = false;

  void add_text(const std::vector<std::string>& files) {
    sources.push_back(text_bytes(files));
    has_text = true;
  }
};

Opened open_all(const DataOptions& options) {
  Opened opened;
  for (const std::string& path : options.paths) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      opened.add_text(text_files(path));
    } else if (kind_of(path) == Kind::text) {
      opened.add_text({path});
    } else {
      opened.sources.push_back(token_file(path, options));
    }
  }
  return opened;
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DataOptions& options) {
  check(options);
  Opened opened = open_all(options);
  if (opened.has_text && options.vocab_size < kByteValues) {
    throw ModelError(fmt::format("data {}: text is read as bytes, which need a vocabulary of {}; this model's has {}",
                                 printable(options.paths.front()), kByteValues, options.vocab_size));
  }
  std::unique_ptr<TokenSource> tokens = joined(std::move(opened.sources));
  if (tokens->tokens() <= options.sequence) {
    throw InputError(fmt::format("data {}: {} tokens, but one row takes {} + 1; add data or lower --seq-len",
                                 printable(options.paths.front()), tokens->tokens(), options.sequence));
  }
  // Text uses ids 0 to 255, so its mask is the first id that isn't a byte.
  const std::int64_t mask_id = std::min(opened.has_text ? kByteValues : kBertMaskId, options.vocab_size - 1);
  return std::make_unique<Rows>(std::move(tokens), options, mask_id);
}

}  // namespace vramfit
