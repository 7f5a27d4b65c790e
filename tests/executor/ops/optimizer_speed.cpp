// What an update of 2^24 elements takes on CPU, beside LibTorch's fused AdamW in fp32 by turns: the best of several.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {
namespace {

constexpr std::int64_t kElements = std::int64_t{1} << 24;
constexpr int kRounds = 15;

struct Subject {
  std::string_view optimizer;
  at::ScalarType storage, state;
  std::string_view what;
};

const std::vector<Subject> kSubjects{
    {"adamw", at::kFloat, at::kFloat, "adamw, fp32 (LibTorch's fused)"},
    {"adamw", at::kBFloat16, at::kBFloat16, "adamw, bf16 (LibTorch's fused)"},
    {"adamw", at::kBFloat16, at::kFloat, "adamw, bf16 parameters and fp32 states"},
    {"adamw", at::kFloat, at::kBFloat16, "adamw, fp32 parameters and bf16 states"},
    {"adamw-8bit", at::kFloat, at::kFloat, "adamw-8bit, fp32 parameters"},
    {"adamw-8bit", at::kBFloat16, at::kBFloat16, "adamw-8bit, bf16 parameters"},
    {"adamw-4bit", at::kFloat, at::kFloat, "adamw-4bit, fp32 parameters"},
    {"adamw-4bit", at::kBFloat16, at::kBFloat16, "adamw-4bit, bf16 parameters"},
    {"adamw-fp8", at::kFloat, at::kFloat, "adamw-fp8, fp32 parameters"},
    {"adamw-fp8", at::kBFloat16, at::kBFloat16, "adamw-fp8, bf16 parameters"},
    {"adamw-fp8-blocks", at::kFloat, at::kFloat, "adamw-fp8-blocks, fp32 parameters"},
    {"adamw-fp8-blocks", at::kBFloat16, at::kBFloat16, "adamw-fp8-blocks, bf16 parameters"}};

class Timed {
 public:
  explicit Timed(const Subject& subject)
      : subject_(subject),
        parameters_(at::randn({kElements}).to(subject.storage)),
        gradients_(at::randn({kElements}).to(subject.storage)),
        options_(complete_options({}, subject.optimizer)) {
    for (const OptimizerState& state : optimizer_named(subject.optimizer).states) {
      const bool is_count = state.holds == OptimizerState::Holds::updates;
      const at::ScalarType own = state.dtype == Dtype::u8    ? at::kByte
                                 : state.dtype == Dtype::f16 ? at::kHalf
                                                             : at::kFloat;
      const std::int64_t numbers = is_by_parameter(state) ? 1 : numbers_of(state, kElements);
      states_.push_back(at::zeros({numbers}, state.dtype || is_count ? own : subject.state));
    }
  }

  void run() {
    OptimizerCall call{.parameters = parameters_,
                       .gradients = gradients_,
                       .states = states_,
                       .gradient_divisor = nullptr,
                       .found_inf = nullptr,
                       .options = options_,
                       .rows = rows_};
    const auto begin = std::chrono::steady_clock::now();
    optimizer_step(subject_.optimizer, DeviceKind::cpu)(call);
    best_ = std::min(best_, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }

  double best() const { return best_; }
  std::string_view what() const { return subject_.what; }

 private:
  Subject subject_;
  at::Tensor parameters_, gradients_;
  std::vector<at::Tensor> states_;
  OptimizerOptions options_;
  std::vector<ParameterRows> rows_{{.rows = kElements, .held_rows = kElements, .all_rows = kElements}};
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace
}  // namespace vramfit

int main() {
  using namespace vramfit;
  std::vector<Timed> all(kSubjects.begin(), kSubjects.end());
  for (int round = 0; round < kRounds; ++round) {
    for (Timed& subject : all) subject.run();
  }
  fmt::print("{} elements, {} threads, best of {}\n", kElements, at::get_num_threads(), kRounds);
  for (const Timed& subject : all) {
    fmt::print("{:<44}{:>8.1f} ms  {:.2f} of the first\n", subject.what(), 1e3 * subject.best(),
               subject.best() / all.front().best());
  }
  return 0;
}
