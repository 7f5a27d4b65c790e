#include "cli/format/at_peak_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::int64_t kShownShare = 50;
constexpr int kShownDepth = 3, kNameWidth = 34, kBarCells = 24;
constexpr std::size_t kShownTensors = 10;

std::string amount(Bytes bytes) { return fmt::format("{:.{}f}", gib_of(bytes), bytes < kGiB ? 3 : 2); }

std::string module_row(const HeldModule& module, Bytes all, const Terminal& terminal) {
  const double share = all.n > 0 ? static_cast<double>(module.bytes.n) / static_cast<double>(all.n) : 0;
  const std::string name = std::string(static_cast<std::size_t>(2 * module.depth), ' ') + printable(module.name, 60);
  return fmt::format("  {:<{}}{:>9}  {:>7}  {:>4.0f} %  {}\n", name, kNameWidth, amount(module.bytes), module.tensors,
                     100 * share, bar(terminal, std::clamp(share, 0.0, 1.0), kBarCells));
}

}  // namespace

std::string at_peak_text(const AtPeak& at_peak, const Terminal& terminal) {
  std::string text = fmt::format("\nIn memory at the peak, in {}{}: {} GiB in {} tensors\n", phase_name(at_peak.phase),
                                 at_peak.step == 0 ? "" : fmt::format(" of step {}", at_peak.step),
                                 amount(at_peak.requested), at_peak.tensors);
  text += fmt::format("  {:<{}}{:>9}  {:>7}\n", "Module", kNameWidth, "GiB", "tensors");
  for (const HeldModule& module : at_peak.modules) {
    if (module.depth >= kShownDepth || module.bytes.n * kShownShare < at_peak.requested.n) continue;
    text += module_row(module, at_peak.requested, terminal);
  }
  text += fmt::format("\n  {:>9}  {:>7}  {}\n", "GiB", "tensors", "Largest tensors, those of all layers together");
  for (std::size_t i = 0; i < std::min(kShownTensors, at_peak.largest.size()); ++i) {
    const HeldTensors& held = at_peak.largest[i];
    text += fmt::format("  {:>9}  {:>7}  {} ({})\n", amount(held.bytes), held.count, printable(held.name, 120),
                        category_name(held.category));
  }
  return text;
}

}  // namespace vramfit
