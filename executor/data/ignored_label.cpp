#include <algorithm>
#include <utility>

#include "executor/data/data.h"

namespace vramfit {
namespace {

constexpr std::int64_t kUnlabelled = -100;

class WithoutLabel : public Dataset {
 public:
  WithoutLabel(std::unique_ptr<Dataset> data, std::int64_t id, std::int64_t sequence)
      : data_(std::move(data)), id_(id), sequence_(static_cast<std::size_t>(sequence)) {}

  std::int64_t rows() const override { return data_->rows(); }

  void row(std::int64_t index, std::span<std::int64_t> ids, std::span<std::int64_t> labels) const override {
    data_->row(index, ids, labels);
    std::ranges::replace(labels, id_, kUnlabelled);
  }

  std::int64_t label_tokens(std::int64_t index) const override {
    std::vector<std::int64_t> ids(sequence_), labels(sequence_);
    row(index, ids, labels);
    return std::ssize(labels) - std::ranges::count(labels, kUnlabelled);
  }

 private:
  std::unique_ptr<Dataset> data_;
  std::int64_t id_;
  std::size_t sequence_;
};

}  // namespace

std::unique_ptr<Dataset> without_label(std::unique_ptr<Dataset> data, std::int64_t id, std::int64_t sequence) {
  return std::make_unique<WithoutLabel>(std::move(data), id, sequence);
}

}  // namespace vramfit
