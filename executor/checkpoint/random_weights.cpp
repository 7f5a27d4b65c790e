#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/text/units.h"
#include "executor/checkpoint/normal.h"
#include "executor/checkpoint/weights.h"
#include "executor/checkpoint/write_torch.h"
#include "executor/training/counter_random.h"

namespace vramfit {
namespace {

constexpr float kDeviation = 0.02F;  // initializer_range of most configurations
constexpr std::int64_t kBlock = 8192;
constexpr std::int64_t kWorthAThread = std::int64_t{1} << 18;

// Calls `work` on disjoint ranges that cover 0 .. count, one a thread. `work` must not throw in other threads.
void in_ranges(std::int64_t count, int most_threads, const std::function<void(std::int64_t, std::int64_t)>& work) {
  const std::int64_t threads = std::clamp<std::int64_t>(count / kWorthAThread, 1, std::max(most_threads, 1));
  const std::int64_t each = ceil_div(count, threads);
  std::vector<std::jthread> others;
  for (std::int64_t t = 1; t < threads; ++t) {
    others.emplace_back([&work, t, each, count] { work(t * each, std::min((t + 1) * each, count)); });
  }
  work(0, std::min(each, count));
}

/// Elements `first` and up of the stream `key`, uniform between -bound and bound; each from the upper 24 bits of a
/// word.
void fill_uniform(std::uint64_t key, std::int64_t first, float bound, std::span<float> into) {
  constexpr float kStep = 1.0F / static_cast<float>(1 << 23);
  for (std::size_t i = 0; i < into.size(); ++i) {
    const std::uint64_t word = random_word(key, static_cast<std::uint64_t>(first) + i);
    into[i] = bound * (static_cast<float>(word >> 40U) * kStep - 1.0F);
  }
}

class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(std::uint64_t seed) : seed_(seed) {}

  void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) override {
    const std::int64_t row_elements = row_element_count(parameter);
    const std::int64_t first = checked_mul(first_row, row_elements), count = checked_mul(rows, row_elements);
    const std::uint64_t key = stream_key(seed_, parameter.name);
    const float bound = 1.0F / std::sqrt(static_cast<float>(row_elements));
    write_from_host(into, count, [&](at::Tensor& host, std::int64_t offset, std::int64_t here) {
      fill({parameter.init, key, first + offset, bound}, here, host);
    });
  }

  bool lacks(const Parameter& parameter) const override { return parameter.init == Parameter::Init::norms; }

  std::string description() const override { return fmt::format("random (seed {})", seed_); }

 private:
  struct Stream {
    Parameter::Init init;
    std::uint64_t key;
    std::int64_t first;  // element
    float bound;         // of a uniform distribution
  };

  static void fill(const Stream& stream, std::int64_t count, at::Tensor& host) {
    // This write of nothing refuses types that can't be written, before any thread starts.
    write_numbers(host, count, std::span<const float>{});
    in_ranges(count, writing_threads(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> values(kBlock, stream.init == Parameter::Init::ones ? 1.0F : 0.0F);
      for (std::int64_t at = begin; at < end; at += kBlock) {
        const std::span<float> block = std::span(values).first(static_cast<std::size_t>(std::min(kBlock, end - at)));
        if (stream.init == Parameter::Init::normal) fill_normal(stream.key, stream.first + at, kDeviation, block);
        if (stream.init == Parameter::Init::uniform) {
          fill_uniform(stream.key, stream.first + at, stream.bound, block);
        }
        write_numbers(host, at, block);
      }
    });
  }

  std::uint64_t seed_;
};

}  // namespace

std::int64_t row_element_count(const Parameter& parameter) {
  std::int64_t elements = 1;
  for (std::size_t dim = 1; dim < parameter.shape.size(); ++dim) elements = checked_mul(elements, parameter.shape[dim]);
  return elements;
}

std::unique_ptr<WeightSource> random_weights(std::uint64_t seed) { return std::make_unique<RandomWeights>(seed); }

}  // namespace vramfit
