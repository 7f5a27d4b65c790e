#include <algorithm>
#include <limits>

#include "executor/data/data.h"
#include "executor/data/masking.h"
#include "executor/training/counter_random.h"

namespace vramfit {
namespace {

constexpr std::int64_t kBertMaskId = 103;  // [MASK] in the vocabularies of bert-base-uncased and bert-base-cased

/// Uniform token ids, each a function of the seed and its place in the data order only: the same on any mesh.
class Synthetic : public Dataset {
 public:
  explicit Synthetic(const DataOptions& options)
      : options_(options), key_(stream_key(options.seed, "synthetic tokens")) {}

  /// There is no end to them.
  std::int64_t rows() const override { return std::numeric_limits<std::int64_t>::max() / (options_.sequence + 1); }

  void row(std::int64_t index, std::span<std::int64_t> ids, std::span<std::int64_t> labels) const override {
    const std::int64_t first = index * (options_.sequence + 1);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = token(first + static_cast<std::int64_t>(i));
    if (options_.masked_lm) {
      const std::int64_t mask_id = std::min(kBertMaskId, options_.vocab_size - 1);
      RowMask(options_.seed, index, options_.sequence).apply(mask_id, options_.vocab_size, ids, labels);
      return;
    }
    std::copy(ids.begin() + 1, ids.end(), labels.begin());
    labels.back() = token(first + options_.sequence);
  }

  std::int64_t label_tokens(std::int64_t index) const override {
    return options_.masked_lm ? RowMask(options_.seed, index, options_.sequence).label_tokens() : options_.sequence;
  }

 private:
  std::int64_t token(std::int64_t place) const {
    return static_cast<std::int64_t>(random_word(key_, static_cast<std::uint64_t>(place)) %
                                     static_cast<std::uint64_t>(options_.vocab_size));
  }

  DataOptions options_;
  std::uint64_t key_;
};

}  // namespace

std::unique_ptr<Dataset> synthetic_dataset(const DataOptions& options) { return std::make_unique<Synthetic>(options); }

}  // namespace vramfit
