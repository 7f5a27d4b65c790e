#include "cli/format/calibration_text.h"

#include <fmt/format.h>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

std::string percent(double error) { return fmt::format("{:+.0f} %", 100 * error); }

std::string groups_text(const Calibration& calibration, const Terminal& terminal) {
  std::string text = styled(terminal, Style::bold,
                            fmt::format("{:<34}{:>8}{:>22}{:>22}", "predicted / measured - 1, median", "timings",
                                        "with known figures", "with measured ones")) +
                     "\n";
  for (const CalibratedGroup& group : calibration.groups) {
    text += fmt::format("{:<34}{:>8}{:>22}{:>22}\n", group.group, group.measurements, percent(group.error_of_known),
                        percent(group.error_of_measured));
  }
  return text;
}

std::string figures_text(const Calibration& calibration, const Terminal& terminal) {
  std::string text =
      styled(terminal, Style::bold, fmt::format("{:<42}{:>22}{:>22}", "figure", "known", "measured")) + "\n";
  for (const CalibratedFigure& figure : calibration.figures) {
    text += fmt::format("{:<42}{:>22.4g}{:>22.4g}\n", figure.key, figure.known, figure.measured);
  }
  return text;
}

}  // namespace

std::string calibration_text(const Calibration& calibration, const Cluster& cluster, const Measurements& measured,
                             const std::string& output, const Terminal& terminal) {
  std::string text = fmt::format("{} ({} rank{}), measured in {:.1f} s\n\n", printable(cluster.text), measured.ranks,
                                 measured.ranks == 1 ? "" : "s", measured.seconds);
  text += groups_text(calibration, terminal) + "\n" + figures_text(calibration, terminal) + "\n";
  for (const std::string& what : calibration.not_measured) text += fmt::format("not measured: {}\n", what);
  if (output.empty()) return text + "\n-o FILE writes these figures for --calibration\n";
  return text + fmt::format("\nto use them: vramfit estimate MODEL --gpus {} --calibration {}\n",
                            printable(cluster.text), printable(output, 4096));
}

}  // namespace vramfit
