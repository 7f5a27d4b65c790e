// Bounds of what cuDNN and cuFFT may ask for to work in.
#include "phantom/cudnn/workspaces.h"

#include <doctest/doctest.h>

#include <array>

#include "phantom/cufft/work_area.h"

namespace vramfit::phantom {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

TEST_CASE("a recurrent network keeps what a P100 was seen to keep, and works in more than it was seen to") {
  cudnn::RecurrentShape lstm{.steps = 500, .batch = 50, .hidden = 320, .layers = 4, .gates = 4};
  lstm.matrix_elements = 4 * 320 * (123 + 320 + 3 * 640);
  CHECK(cudnn::recurrent_reserve(lstm) == 736'000'000);
  CHECK(cudnn::recurrent_bound(lstm) > 17'730'560);
  cudnn::RecurrentShape gru = lstm;
  gru.gates = 3;
  gru.matrix_elements = lstm.matrix_elements / 4 * 3;
  CHECK(cudnn::recurrent_reserve(gru) == 864'000'000);
  CHECK(cudnn::recurrent_bound(gru) > 13'169'920);
  cudnn::RecurrentShape both = lstm;
  both.directions = 2;
  CHECK(cudnn::recurrent_reserve(both) == 2 * 736'000'000);
  lstm.has_dropout = true;
  CHECK(cudnn::recurrent_reserve(lstm) == 736'000'000 + std::int64_t{3} * 25'000 * 320 * 4);
}

TEST_CASE(
    "a convolution's bound holds for the largest workspace that was reported, and has what each algorithm keeps") {
  const cudnn::ConvolutionShape transposed{
      .x = {1024, 1, 1024, 1024}, .w = {1, 1, 1, 1}, .y = {1024, 1, 1024, 1024}, .element_bytes = 2};
  CHECK(cudnn::convolution_bound(transposed) > 48 * kGiB);
  const cudnn::ConvolutionShape strided{
      .x = {8, 64, 56, 56}, .w = {128, 64, 3, 3}, .y = {8, 128, 28, 28}, .element_bytes = 2};
  const std::int64_t of_strided = 4 * (std::int64_t{8} * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 28 * 28);
  const std::int64_t tiles = std::int64_t{4} * 36 * (8 * 64 * 14 * 14 + 128 * 64 + 8 * 128 * 14 * 14);  // Winograd's
  CHECK(cudnn::convolution_bound(strided) == of_strided + tiles);
  const cudnn::ConvolutionShape large{
      .x = {8, 3, 224, 224}, .w = {64, 3, 7, 7}, .y = {8, 64, 112, 112}, .element_bytes = 4};
  const std::int64_t of_large = 4 * (std::int64_t{8} * 8 * 224 * 224 + 64 * 8 * 49 + 8 * 64 * 112 * 112);
  CHECK(cudnn::convolution_bound(large) == of_large + std::int64_t{8} * 3 * 49 * 112 * 112 * 4);  // the matrix
  const cudnn::ConvolutionShape plain{
      .x = {8, 64, 56, 56}, .w = {128, 64, 3, 3}, .y = {8, 128, 56, 56}, .element_bytes = 4};
  const std::int64_t of_plain = 4 * (std::int64_t{8} * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 56 * 56);
  const std::int64_t spectra = std::int64_t{8} * (64 * 64 / 2 + 1) * (8 * 64 + 128 * 64 + 8 * 128);
  CHECK(cudnn::convolution_bound(plain) == of_plain + spectra);
}

TEST_CASE("a convolution by groups copies the channels of each group apart") {
  const cudnn::ConvolutionShape depthwise{.x = {1, 3, 100}, .w = {3, 1, 7}, .y = {1, 3, 94}, .element_bytes = 4};
  const std::int64_t copies = 4 * (std::int64_t{3} * 8 * 100 + 8 * 8 * 7 + 3 * 8 * 94);
  CHECK(cudnn::convolution_bound(depthwise) >= copies + std::int64_t{3} * 7 * 94 * 4);
}

TEST_CASE("shapes that are none of a convolution have no workspace, and huge ones don't overflow") {
  CHECK(cudnn::convolution_bound({}) == 0);
  CHECK(cudnn::convolution_bound({.x = {1, 2, 3}, .w = {1, 2}, .y = {1, 2, 3}}) == 0);
  CHECK(cudnn::convolution_bound({.x = {1, -2, 3}, .w = {1, 2, 1}, .y = {1, 2, 3}}) == 0);
  constexpr std::int64_t kHuge = (std::int64_t{1} << 31) - 1;
  CHECK(cudnn::convolution_bound({.x = {kHuge, kHuge, kHuge}, .w = {kHuge, kHuge, kHuge}, .y = {kHuge, kHuge, kHuge}}) >
        0);
}

TEST_CASE("a plan of cuFFT works in as much as its data, and a large prime in eight times that") {
  CHECK(cufft::most_bytes(std::array<long long, 2>{512, 512}, 32, 8) == 64 << 20);
  CHECK(cufft::most_bytes(std::array<long long, 1>{1021}, 2, 16) == std::int64_t{8} * 1021 * 2 * 16);
  CHECK(cufft::most_bytes(std::array<long long, 1>{0}, 2, 16) == 0);
  CHECK(cufft::most_bytes(std::array<long long, 2>{1LL << 40, 1LL << 40}, 1, 16) == 0);
}

}  // namespace
}  // namespace vramfit::phantom
