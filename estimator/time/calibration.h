// Figures of the machine in use, from what `vramfit calibrate` measured there: those that make its predictions fit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "program/files/measurements.h"

namespace vramfit {

struct CalibratedFigure {
  std::string key;  // as in configs/efficiency
  double known = 0, measured = 0;
  std::string origin;  // "measured: ..."
};

/// What was measured of one kind of work, and how far predictions of it are off: predicted / measured - 1, the median.
struct CalibratedGroup {
  std::string group;
  std::size_t measurements = 0;
  double error_of_known = 0, error_of_measured = 0;
};

struct Calibration {
  std::vector<CalibratedFigure> figures;
  std::vector<CalibratedGroup> groups;
  std::vector<std::string> not_measured;  // what keeps the known figures, and why
  Efficiency efficiency;                  // the known one with the figures
};

/// Each figure is the one with the least sum of logarithmic errors over what it decides, as scripts/fit-efficiency fits
/// those of configs/efficiency/.
Calibration calibration_of(const Cluster& cluster, const Measurements& measurements);

/// A file for --calibration that has figures alone.
std::string figures_to_json(const std::vector<CalibratedFigure>& figures, const Cluster& cluster);
/// A file for --calibration, of the form of configs/efficiency/.
std::string calibration_to_json(const Calibration& calibration, const Cluster& cluster, const Measurements& measured);

}  // namespace vramfit
