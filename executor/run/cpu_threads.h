// How many threads a rank computes with on the CPU.
#pragma once

namespace vramfit {

/// `asked`; 0: what OMP_NUM_THREADS says, or else the rank's share of the cores of a machine with `ranks` of them.
int cpu_threads(int asked, int ranks);

}  // namespace vramfit
