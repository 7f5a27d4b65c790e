// Token rows for training: pre-tokenized .bin or .npy, or text read as bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace vramfit {

struct DataOptions {
  std::vector<std::string> paths;  // files, or a directory (text: *.md, *.txt, sorted)
  int token_bytes = 0;             // .bin: 2 or 4; 0: by vocabulary size
  std::int64_t vocab_size = 0, sequence = 0;
  std::uint64_t seed = 0;
  bool masked_lm = false;  // labels on a seeded 15 % of positions, else the next token
};

/// Rows of `sequence` tokens, in an order fixed by the seed, wrapping around with a new order each epoch.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t rows() const = 0;
  /// Writes row `index` of the data order: ids and labels (-100: no label). Labels of next-token rows are
  /// already shifted (labels[t] is the token after ids[t]), so all `sequence` positions carry one.
  virtual void row(std::int64_t index, std::span<std::int64_t> ids, std::span<std::int64_t> labels) const = 0;
  /// Label tokens of a row without reading it twice.
  virtual std::int64_t label_tokens(std::int64_t index) const = 0;
};

/// Throws InputError (missing or malformed file, fewer than sequence + 1 tokens) or ModelError (id outside the
/// vocabulary, with file and position).
std::unique_ptr<Dataset> open_dataset(const DataOptions& options);

/// Random tokens by the seed, for runs without --data: memory and speed are those of real data, the loss says nothing.
/// Of `options`, vocab_size, sequence, seed and masked_lm count.
std::unique_ptr<Dataset> synthetic_dataset(const DataOptions& options);

/// Rows of zeros with every position labelled: for phantom GPUs, which never read a token.
std::unique_ptr<Dataset> made_up_dataset(std::int64_t sequence);

/// The rows of `data`, of `sequence` tokens, in which labels that are `id` are none (-100). To count a row's labels
/// takes reading it.
std::unique_ptr<Dataset> without_label(std::unique_ptr<Dataset> data, std::int64_t id, std::int64_t sequence);

}  // namespace vramfit
