// The predicted time of a training step.
#pragma once

namespace vramfit {

struct StepTime {
  double compute_seconds = 0;        // of the step, in which the compute stream runs kernels
  double communication_seconds = 0;  // in which collectives run, those of all axes added
  double idle_seconds = 0;           // in which the compute stream waits: for a collective, or for the host's launches
  double step_seconds = 0;           // until all streams and the host are done
};

}  // namespace vramfit
