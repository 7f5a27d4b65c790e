// Where in a step a program requests the most.
#pragma once

#include <string>

#include "program/program.h"

namespace vramfit {

struct PeakPlace {
  Phase phase = Phase::load;
  int segment = -1;  // -1: of no segment
  Bytes requested;   // of the card's memory, at once
};

/// The first place at which no more is live anywhere else.
PeakPlace peak_place(const program::Program& program);

/// "backward of layers.31", "optimizer".
std::string peak_place_text(const program::Program& program);

}  // namespace vramfit
