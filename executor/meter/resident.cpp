#include <fstream>
#include <string>

#include "executor/meter/meter.h"

namespace vramfit {

// Linux, proc(5): /proc/self/status gives VmRSS and VmHWM in kB of 1024 bytes.
ResidentBytes resident_bytes() {
  ResidentBytes resident{};
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto read = [&](Bytes& into) { into = std::stoll(line.substr(line.find(':') + 1)) * kKiB; };
    if (line.starts_with("VmRSS:")) read(resident.now);
    if (line.starts_with("VmHWM:")) read(resident.peak);
  }
  return resident;
}

}  // namespace vramfit
