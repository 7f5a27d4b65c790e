#include "executor/training/rope_tables.h"

#include <cmath>
#include <numbers>

namespace vramfit {

namespace {

float llama3_scaled(const Rope& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor), high = static_cast<float>(rope.high_freq_factor);
  const auto context = static_cast<float>(rope.original_max_position_embeddings);
  const float wavelength = 2.0F * std::numbers::pi_v<float> / frequency;
  if (wavelength < context / high) return frequency;
  if (wavelength > context / low) return frequency / factor;
  const float smooth = (context / wavelength - low) / (high - low);
  return (1.0F - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const Rope& rope, std::int64_t dims) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    float frequency = 1.0F / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.scaling == Rope::Scaling::linear) frequency /= static_cast<float>(rope.factor);
    if (rope.scaling == Rope::Scaling::llama3) frequency = llama3_scaled(rope, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void fill_rope_table(const std::vector<float>& frequencies, std::int64_t sequence, float* cos, float* sin) {
  for (std::int64_t position = 0; position < sequence; ++position) {
    for (float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      *cos++ = std::cos(angle);
      *sin++ = std::sin(angle);
    }
  }
}

}  // namespace vramfit
