#include "program/count.h"

#include "program/bytes.h"
#include "program/lowering/lower.h"
#include "program/pytorch/count_eager.h"

namespace vramfit {

Ledger count(const Graph& graph, const Job& job, const Device& device, const Coords& coords,
             const CountOptions& options) {
  if (job.runtime == Runtime::pytorch_fsdp2) return eager::count_eager(graph, job, device, options);
  const program::Program program =
      program::lower({.graph = graph, .job = job, .device = device, .coords = coords, .clip = options.clip});
  return ledger_of(program, {.steps = options.steps, .abbreviate = options.abbreviate});
}

}  // namespace vramfit
