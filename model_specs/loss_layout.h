// The same model with its loss laid out in another way.
#pragma once

#include "model_specs/graph.h"

namespace vramfit {

/// Of a graph of build_graph(): what build_graph() makes with `loss`, in a third of the time.
Graph with_loss(Graph graph, const LossOptions& loss);

}  // namespace vramfit
