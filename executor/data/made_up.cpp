#include <algorithm>

#include "executor/data/data.h"

namespace vramfit {
namespace {

class MadeUp : public Dataset {
 public:
  explicit MadeUp(std::int64_t sequence) : sequence_(sequence) {}
  std::int64_t rows() const override { return 1; }
  void row(std::int64_t /*index*/, std::span<std::int64_t> ids, std::span<std::int64_t> labels) const override {
    std::ranges::fill(ids, 0);
    std::ranges::fill(labels, 0);
  }
  std::int64_t label_tokens(std::int64_t /*index*/) const override { return sequence_; }

 private:
  std::int64_t sequence_;
};

}  // namespace

std::unique_ptr<Dataset> made_up_dataset(std::int64_t sequence) { return std::make_unique<MadeUp>(sequence); }

}  // namespace vramfit
