// What `vramfit calibrate` measured on this machine, from vramfit-train to vramfit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"
#include "program/work.h"

namespace vramfit {

/// One call of a kernel function of the executor, alone.
struct MeasuredKernel {
  std::string group;       // what it is shown with: "products, bf16"
  std::vector<Work> work;  // of the call, as its rule says
  double seconds = 0;      // of the call; the median of several
};

/// A copy between the card and pinned memory of its host.
struct MeasuredCopy {
  std::string group;
  double bytes = 0, seconds = 0;
};

struct MeasuredCollective {
  program::Collective collective = program::Collective::all_gather;
  Bytes bytes;  // of the whole data
  double seconds = 0;
};

/// Of rank 0, while the other ranks do the same.
struct Measurements {
  std::string device;  // "cpu", or the name by which CUDA knows the card
  int ranks = 1;
  double seconds = 0;         // that measuring took
  double launch_seconds = 0;  // between calls of a function with next to nothing to do
  std::vector<MeasuredKernel> kernels;
  std::vector<MeasuredCopy> copies;             // CUDA alone
  std::vector<MeasuredCopy> updates_on_host;    // bytes that an optimizer moves in host memory; CUDA alone
  std::vector<MeasuredCollective> collectives;  // none with one rank
};

std::string measurements_to_json(const Measurements& measurements);

/// Throws InputError naming `file` and the key.
Measurements measurements_from_json(std::string_view text, const std::string& file);

}  // namespace vramfit
