#include "program/readers/count.h"

#include "program/make_program.h"
#include "program/readers/bytes.h"

namespace vramfit {

Ledger count(const Graph& graph, const Job& job, const Device& device, const Coords& coords,
             const CountOptions& options) {
  const program::Program program =
      program::make_program({.graph = graph, .job = job, .device = device, .coords = coords, .run = options.run});
  return ledger_of(program, {.steps = options.steps, .abbreviate = options.abbreviate});
}

}  // namespace vramfit
