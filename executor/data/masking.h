// Masked language modelling: which positions of a row have a label, and which id the model sees there.
#pragma once

#include <cstdint>
#include <span>

namespace vramfit {

/// The choices for one row, from (seed, index in the data order, position) only. 15 % of positions carry a label; of
/// those, the model sees the mask id at 80 %, a random id at 10 % and the id itself at 10 % (Devlin et al.: BERT,
/// NAACL 2019, section 3.1). A row in which no position was drawn gets one at random, so that no row is without a
/// label.
class RowMask {
 public:
  RowMask(std::uint64_t seed, std::int64_t index, std::int64_t sequence);
  /// Positions that carry a label; reads no ids.
  std::int64_t label_tokens() const;
  /// Labels become the ids at the drawn positions and -100 elsewhere; ids what the model sees.
  void apply(std::int64_t mask_id, std::int64_t vocab_size, std::span<std::int64_t> ids,
             std::span<std::int64_t> labels) const;

 private:
  bool is_drawn(std::int64_t position) const;

  std::uint64_t key_;
  std::int64_t sequence_;
  std::int64_t only_ = -1;  // the position that carries the label when none was drawn
};

}  // namespace vramfit
