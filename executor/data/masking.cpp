#include "executor/data/masking.h"

#include "executor/training/counter_random.h"

namespace vramfit {
namespace {

constexpr std::uint64_t kDrawn = 15, kMasked = 80, kReplaced = 90;  // of 100
constexpr std::int64_t kNoLabel = -100;

// A number below `count` from the upper 32 bits of a word; the bias is below count / 2^32.
std::uint64_t below(std::uint64_t word, std::uint64_t count) { return (word >> 32U) * count >> 32U; }

}  // namespace

RowMask::RowMask(std::uint64_t seed, std::int64_t index, std::int64_t sequence)
    : key_(random_word(stream_key(seed, "masked positions"), static_cast<std::uint64_t>(index))), sequence_(sequence) {
  for (std::int64_t i = 0; i < sequence; ++i) {
    if (is_drawn(i)) return;
  }
  only_ = static_cast<std::int64_t>(below(mix_bits(key_), static_cast<std::uint64_t>(sequence)));
}

bool RowMask::is_drawn(std::int64_t position) const {
  return position == only_ || below(random_word(key_, static_cast<std::uint64_t>(position)), 100) < kDrawn;
}

std::int64_t RowMask::label_tokens() const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < sequence_; ++i) count += is_drawn(i) ? 1 : 0;
  return count;
}

void RowMask::apply(std::int64_t mask_id, std::int64_t vocab_size, std::span<std::int64_t> ids,
                    std::span<std::int64_t> labels) const {
  for (std::int64_t i = 0; i < sequence_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    labels[at] = is_drawn(i) ? ids[at] : kNoLabel;
    if (!is_drawn(i)) continue;
    const std::uint64_t word = mix_bits(random_word(key_, static_cast<std::uint64_t>(i)));
    const std::uint64_t choice = below(word, 100);
    if (choice < kMasked) {
      ids[at] = mask_id;
    } else if (choice < kReplaced) {
      ids[at] = static_cast<std::int64_t>(below(mix_bits(word), static_cast<std::uint64_t>(vocab_size)));
    }
  }
}

}  // namespace vramfit
