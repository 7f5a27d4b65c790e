// Which products with matrices of 4 bits have a kernel of bitsandbytes', as its own code says for these cards.
#include "program/pytorch/calls/fused_4bit.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace vramfit::eager {
namespace {

struct Card {
  int capability, multiprocessors;
};
constexpr std::array kCards{Card{75, 40},  Card{80, 108},  Card{86, 82},   Card{89, 128},
                            Card{90, 132}, Card{100, 148}, Card{120, 170}, Card{121, 48}};

struct Row {
  std::int64_t inputs, outputs;
  std::array<std::int64_t, kCards.size()> most_rows;
};
// bitsandbytes 0.50.2: the most rows from 9 to 1536 for which _gemm_4bit_use_custom_cuda is true; 0: none.
constexpr std::array kRows{
    Row{512, 2048, {320, 1536, 320, 320, 512, 0, 320, 192}}, Row{1024, 1024, {64, 128, 23, 23, 32, 0, 23, 16}},
    Row{768, 3072, {96, 512, 192, 320, 320, 0, 320, 320}},   Row{4096, 4096, {64, 0, 64, 0, 0, 0, 0, 256}},
    Row{4096, 14336, {128, 64, 128, 128, 32, 0, 64, 256}},   Row{14336, 4096, {64, 0, 64, 64, 0, 0, 0, 256}},
    Row{4096, 1024, {32, 16, 16, 12, 0, 0, 0, 12}},          Row{8192, 28672, {128, 128, 128, 256, 64, 32, 128, 256}},
    Row{2048, 512, {64, 32, 23, 23, 32, 0, 23, 23}},         Row{12288, 4096, {64, 0, 64, 64, 0, 0, 0, 256}}};

TEST_CASE("products of few rows with matrices of 4 bits have the kernels that bitsandbytes picks") {
  for (const Row& row : kRows) {
    for (std::size_t c = 0; c < kCards.size(); ++c) {
      CAPTURE(row.inputs);
      CAPTURE(row.outputs);
      CAPTURE(kCards[c].capability);
      Device device;
      device.compute_capability = kCards[c].capability;
      device.sm_count = kCards[c].multiprocessors;
      CHECK(most_rows_of_fused_4bit(row.inputs, row.outputs, device) == row.most_rows[c]);
    }
  }
}

TEST_CASE("inputs that aren't whole blocks of scales have no kernel for few rows") {
  Device device;
  device.compute_capability = 80;
  device.sm_count = 108;
  CHECK(most_rows_of_fused_4bit(512, 2048, device) > 0);
  CHECK(most_rows_of_fused_4bit(500, 2048, device) == 0);
}

}  // namespace
}  // namespace vramfit::eager
