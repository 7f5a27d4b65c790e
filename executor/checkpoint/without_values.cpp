#include <utility>

#include "executor/checkpoint/weights.h"

namespace vramfit {
namespace {

class WithoutValues : public WeightSource {
 public:
  explicit WithoutValues(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {}

  void read_rows(const Parameter& /*parameter*/, std::int64_t /*first_row*/, std::int64_t /*rows*/,
                 at::Tensor& /*into*/) override {}

  std::string description() const override { return "no values (phantom), in place of: " + source_->description(); }

 private:
  std::unique_ptr<WeightSource> source_;
};

}  // namespace

std::unique_ptr<WeightSource> without_values(std::unique_ptr<WeightSource> source) {
  return std::make_unique<WithoutValues>(std::move(source));
}

}  // namespace vramfit
