#include "program/pytorch/calls/fused_4bit.h"

#include "base/text/units.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kNone = 0;

/// A product as the limits see it: its thread blocks, of 64 outputs each, against the multiprocessors.
struct Product {
  std::int64_t inputs, outputs, blocks, processors;
  int capability;

  /// Whether blocks fill `numerator / denominator` of the multiprocessors.
  bool fills(std::int64_t numerator, std::int64_t denominator = 1) const {
    return blocks * denominator >= processors * numerator;
  }
  bool fills_half() const { return blocks >= processors / 2; }
  bool is_wide() const { return inputs < outputs; }
  bool is_very_tall() const { return inputs > 2 * outputs; }
  bool has_hbm() const { return capability == 80 || capability / 10 == 9; }
};

/// Of a small matrix with fewer than half as many inputs as outputs.
std::int64_t of_small_and_flat(const Product& p) {
  if (p.has_hbm()) {
    const bool is_low = 3 * p.blocks < p.processors;
    if (p.capability == 80) return is_low ? 1536 : 512;
    return is_low ? 512 : 320;
  }
  constexpr std::int64_t kMost = 320;
  if (p.capability == 75) {
    if (p.fills(3)) return kMost;
    return p.inputs >= 1024 ? 64 : p.inputs >= 704 ? 96 : kMost;
  }
  return !p.fills(1) && p.blocks * p.inputs > p.processors * 320 ? 192 : kMost;
}

std::int64_t of_small(const Product& p) {
  if (2 * p.inputs < p.outputs) return of_small_and_flat(p);
  const bool is_quarter = 4 * p.blocks <= p.processors;
  if (p.capability == 80 && is_quarter) {
    if (p.is_wide()) return 384;
    return 8 * p.blocks <= p.processors ? 32 : 128;
  }
  if (p.capability == 75 && !p.fills(1)) return 64;
  if (is_quarter) return p.is_wide() || p.has_hbm() ? 32 : 23;
  return 2 * p.blocks <= p.processors ? 16 : kNone;
}

std::int64_t on_75(const Product& p) {
  if (p.fills(3)) return p.is_wide() ? 128 : 64;
  return p.fills_half() ? 64 : 32;
}

std::int64_t on_80(const Product& p) {
  if (p.fills(3)) return 128;
  if (p.fills(1)) return p.is_wide() ? 64 : 32;
  if (p.inputs >= 3 * p.outputs && 4 * p.blocks > p.processors) return kNone;
  if (p.inputs == p.outputs && p.blocks >= 48 && !p.fills(3, 5)) return kNone;
  if (!p.fills(1, 2)) {
    if (p.inputs <= p.outputs) return 128;
    if (p.fills(1, 3)) return kNone;
  }
  return p.fills_half() && p.is_wide() ? 128 : 16;
}

std::int64_t on_86(const Product& p) {
  if (p.fills(1)) return 128;
  return p.fills_half() ? 64 : 16;
}

std::int64_t on_90(const Product& p) {
  if (p.fills(3)) return 64;
  if (p.fills(2)) return 48;
  if (p.fills(1)) return 32;
  if (!p.fills_half()) return kNone;
  return !p.is_wide() && !p.fills(3, 4) ? kNone : 16;
}

std::int64_t on_100(const Product& p) { return p.fills(3) ? 32 : kNone; }

std::int64_t on_120(const Product& p) {
  if (p.fills(3)) return 256;
  if (p.fills(2)) return 128;
  if (p.fills(4, 5)) return p.is_wide() ? 64 : 96;
  if (p.fills_half()) return 2 * p.inputs >= p.outputs && p.blocks >= 128 ? 64 : kNone;
  return p.is_very_tall() && p.blocks > 64 ? 16 : kNone;
}

/// Compute capability 8.9, and what has no limits of its own.
std::int64_t on_others(const Product& p) {
  if (p.fills(3)) return 256;
  if (p.fills(2)) return 128;
  if (p.fills(4, 5)) {
    if (p.is_very_tall() || p.blocks >= 200) return 128;
    if (p.is_wide()) return 64;
    return p.processors >= 60 ? 128 : 32;
  }
  if (p.fills_half()) {
    if (p.is_very_tall()) return 64;
    return p.blocks >= 64 ? kNone : 32;
  }
  if (p.inputs > p.outputs && p.blocks <= 48) return p.inputs >= 3 * p.outputs ? 12 : 10;
  return p.is_very_tall() || p.blocks < 48 ? 16 : kNone;
}

std::int64_t of_large(const Product& p) {
  switch (p.capability) {
    case 75:
      return on_75(p);
    case 80:
      return on_80(p);
    case 86:
      return on_86(p);
    case 90:
      return on_90(p);
    case 120:
      return on_120(p);
    case 121:
      return p.fills(1) ? 256 : on_others(p);
    default:
      return on_others(p);
  }
}

}  // namespace

std::int64_t most_rows_of_fused_4bit(std::int64_t inputs, std::int64_t outputs, const Device& device) {
  constexpr std::int64_t kCodesOfScale = 64, kOutputsOfBlock = 64, kSmall = 4 << 20;
  const int capability = device.compute_capability;
  if (inputs % kCodesOfScale != 0 || capability == 87 || capability / 10 == 11) return kNone;
  const Product product{inputs, outputs, ceil_div(outputs, kOutputsOfBlock), device.sm_count, capability};
  if (capability / 10 == 10) return on_100(product);
  return checked_mul(inputs, outputs) < kSmall ? of_small(product) : of_large(product);
}

}  // namespace vramfit::eager
