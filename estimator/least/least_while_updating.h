// Lower bounds of what a job under one of PyTorch's runtimes keeps on the card, from its parameters alone.
#pragma once

#include "base/text/units.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// At most what a job requests at once: shards of parameters, their gradients (of DeepSpeed's, their masters) and
/// AdamW's states, all of which live while it updates. 0 where the job may have less of them (another optimizer,
/// offload, adapters), and for this project's engine. `job` is resolved, `graph` its own.
Bytes least_while_updating(const Graph& graph, const Job& job);

/// At most what of that lives throughout steps after the first one, without gradients: at most what a job requests
/// beside its activations at any moment of such a step.
Bytes least_between_updates(const Graph& graph, const Job& job);

/// At most the bytes of weights that are whole on each card at some time: nothing parts them, or DeepSpeed does once
/// all are loaded, as it does where they have few bits. 0 for other runtimes.
Bytes loaded_whole(const Graph& graph, const Job& job);

/// What DeepSpeed keeps on the card all the time, in steps after the first one: at most that, likewise.
Bytes kept_by_zero(const Graph& graph, const Job& job);

}  // namespace vramfit
