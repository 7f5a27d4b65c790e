// Storage on the counting side: a block is freed in the ledger when its last owner lets go.
#pragma once

#include <memory>
#include <string>

#include "model_specs/dtype.h"
#include "program/ledger.h"

namespace vramfit {

/// A counted tensor's storage.
using Block = std::shared_ptr<void>;

/// Hands out blocks. Those still owned when it ends stay live in the ledger.
class CountedBlocks {
 public:
  CountedBlocks() = default;
  CountedBlocks(const CountedBlocks&) = delete;
  CountedBlocks& operator=(const CountedBlocks&) = delete;
  CountedBlocks(CountedBlocks&&) = delete;
  CountedBlocks& operator=(CountedBlocks&&) = delete;
  ~CountedBlocks() = default;

  /// Nothing of zero elements is allocated. `label` comes from the writer.
  Block allocate(std::int64_t elements, Dtype dtype, Category category, int label);
  Block allocate(std::int64_t elements, Dtype dtype, Category category, const std::string& label) {
    return allocate(elements, dtype, category, writer_.label(label));
  }
  LedgerWriter& writer() { return writer_; }
  /// Blocks that are still owned after this call are not recorded as freed.
  Ledger take() {
    taken_ = true;
    return writer_.take();
  }

 private:
  LedgerWriter writer_;
  bool taken_ = false;
};

}  // namespace vramfit
