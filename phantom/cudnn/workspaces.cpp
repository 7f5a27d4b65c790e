#include "phantom/cudnn/workspaces.h"

#include <algorithm>

namespace vramfit::phantom::cudnn {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 56;  // far beyond any card, and sums of it don't overflow
constexpr std::int64_t kChannels = 8;                  // of a vector that tensor cores load
constexpr std::int64_t kFloatBytes = 4, kComplexBytes = 8;
constexpr std::int64_t kTile = 4;          // outputs of a Winograd tile, along each dimension
constexpr std::int64_t kMostWinograd = 5;  // the largest filter that the algorithms take
constexpr std::size_t kFirstSpatial = 2;

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kMost : std::min(result, kMost);
}

std::int64_t padded(std::int64_t number, std::int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

/// Product over the spatial dimensions of f(input's, filter's, output's size).
template <class F>
std::int64_t over_space(const ConvolutionShape& shape, F f) {
  std::int64_t result = 1;
  for (std::size_t d = kFirstSpatial; d < shape.x.size(); ++d)
    result = product(result, f(shape.x[d], shape.w[d], shape.y[d]));
  return result;
}

/// Numbers of x, w and y together if each of their channels takes so many.
std::int64_t of_channels(const ConvolutionShape& shape, std::int64_t x, std::int64_t w, std::int64_t y) {
  return product(product(shape.x[0], shape.x[1]), x) + product(product(shape.w[0], shape.w[1]), w) +
         product(product(shape.y[0], shape.y[1]), y);
}

std::int64_t copies(const ConvolutionShape& shape) {
  const std::int64_t groups = std::max<std::int64_t>(1, shape.x[1] / shape.w[1]);
  ConvolutionShape wide = shape;
  wide.x[1] = groups * padded(shape.w[1], kChannels);
  wide.w = {padded(shape.w[0], kChannels), padded(shape.w[1], kChannels)};
  wide.y[1] = groups * padded(std::max<std::int64_t>(1, shape.y[1] / groups), kChannels);
  const auto pick = [&](auto which) { return over_space(shape, which); };
  return product(kFloatBytes,
                 of_channels(wide, pick([](auto x, auto, auto) { return x; }),
                             pick([](auto, auto w, auto) { return w; }), pick([](auto, auto, auto y) { return y; })));
}

std::int64_t explicit_matrix(const ConvolutionShape& shape) {
  const std::int64_t window = over_space(shape, [](auto, auto w, auto y) { return product(w, y); });
  return product(product(shape.x[0] * shape.x[1], window), shape.element_bytes);
}

/// A whole image of up to 256 points a side is transformed at once, a larger one by tiles of 32.
std::int64_t transformed_size(std::int64_t size) {
  constexpr std::int64_t kMostWhole = 256, kTransformTile = 32;
  if (size > kMostWhole) return padded(size, kTransformTile);
  std::int64_t power = 1;
  while (power < size) power *= 2;
  return power;
}

/// None with a stride, which these algorithms don't take: the output is then smaller than a filter without padding
/// leaves it.
std::int64_t spectra(const ConvolutionShape& shape) {
  for (std::size_t d = kFirstSpatial; d < shape.x.size(); ++d) {
    if (shape.y[d] < shape.x[d] - shape.w[d] + 1) return 0;
  }
  const std::int64_t points =
      over_space(shape, [](auto x, auto w, auto y) { return transformed_size(std::max(x, y) + w - 1); }) / 2 + 1;
  return product(kComplexBytes, of_channels(shape, points, points, points));
}

std::int64_t winograd(const ConvolutionShape& shape) {
  if (std::any_of(shape.w.begin() + kFirstSpatial, shape.w.end(), [](auto w) { return w > kMostWinograd; })) return 0;
  const std::int64_t points = over_space(shape, [](auto, auto w, auto) { return kTile + w - 1; });
  const std::int64_t tiles =
      over_space(shape, [](auto x, auto, auto y) { return padded(std::max(x, y), kTile) / kTile; });
  return product(product(kFloatBytes, points), of_channels(shape, tiles, 1, tiles));
}

bool is_size(std::int64_t size) {
  constexpr std::int64_t kMostSize = std::int64_t{1} << 31;  // products of two fit
  return size > 0 && size < kMostSize;
}

bool is_one(const ConvolutionShape& shape) {
  const std::size_t dims = shape.x.size();
  if (dims <= kFirstSpatial || shape.w.size() != dims || shape.y.size() != dims) return false;
  const auto fits = [](const auto& sizes) { return std::all_of(sizes.begin(), sizes.end(), is_size); };
  return fits(shape.x) && fits(shape.w) && fits(shape.y);
}

/// For each element of the output of one layer.
std::int64_t kept_of_layer(std::int64_t gates) {
  constexpr std::int64_t kLstm = 4, kGru = 3;
  if (gates == kLstm) return kLstm + 1;
  return gates == kGru ? 2 * kGru : gates;
}

}  // namespace

std::int64_t convolution_bound(const ConvolutionShape& shape) {
  if (!is_one(shape)) return 0;
  return copies(shape) + std::max({explicit_matrix(shape), spectra(shape), winograd(shape)});
}

std::int64_t recurrent_reserve(const RecurrentShape& shape) {
  const std::int64_t passed_on = (shape.layers - 1) * (shape.has_dropout ? 2 : 1);
  const std::int64_t numbers = shape.layers * kept_of_layer(shape.gates) + passed_on;
  const std::int64_t rows = product(shape.steps, product(shape.batch, shape.hidden * shape.directions));
  return product(rows, numbers * shape.element_bytes);
}

std::int64_t recurrent_bound(const RecurrentShape& shape) {
  constexpr std::int64_t kOfGate = 12;
  const std::int64_t states = product(shape.batch, shape.hidden * shape.layers * shape.directions);
  return product(2 * shape.element_bytes, shape.matrix_elements + product(states, kOfGate * shape.gates));
}

}  // namespace vramfit::phantom::cudnn
