#include "estimator/least/least_while_updating.h"

#include <algorithm>

#include "job/parameters/quantization.h"
#include "program/stages/adapters.h"
#include "program/stages/offload.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

/// A parameter's shard. PyTorch's optimizer makes its states in the parameters' dtype, and takes gradients in no other.
Bytes least_of_shard(std::int64_t elements, const Job& job) {
  return elements / job.mesh.shard * dtype_bytes(job.precision.storage);
}

/// With its gradient and both states.
Bytes least_of_adamw(std::int64_t elements, const Job& job) {
  constexpr std::int64_t kOfEach = 4;
  return kOfEach * least_of_shard(elements, job);
}

/// DeepSpeed's weight, of which ZeRO-3 alone keeps a part.
Bytes zero_weight(std::int64_t elements, const Job& job) {
  const std::int64_t kept = job.sharding == "full-shard" ? elements / data_ranks(job) : elements;
  return kept * dtype_bytes(job.precision.compute);
}

/// And the rank's part of its master and of both states.
Bytes zero_weight_and_states(std::int64_t elements, const Job& job) {
  constexpr std::int64_t kOfEach = 3;
  return zero_weight(elements, job) + kOfEach * (elements / data_ranks(job) * dtype_bytes(Dtype::f32));
}

/// And under ZeRO-3 of its gradient.
Bytes least_of_zero(std::int64_t elements, const Job& job) {
  const std::int64_t part = elements / data_ranks(job);
  const Bytes gradient = job.sharding == "full-shard" ? part * dtype_bytes(job.precision.compute) : Bytes{};
  return zero_weight_and_states(elements, job) + gradient;
}

/// ZeRO-3's bucket of gradients.
Bytes zero_bucket(const Job& job) {
  const Bytes element = dtype_bytes(job.precision.compute);
  return job.sharding == "full-shard" ? job.bucket_bytes / element.n * element : Bytes{};
}

/// Of a frozen matrix in few bits its codes.
Bytes whole_weight(std::int64_t elements, const HeldParameter& held, const Job& job) {
  constexpr std::int64_t kBitsOfByte = 8;
  if (held.quantization != nullptr) return Bytes{elements * held.quantization->code / kBitsOfByte};
  return elements * std::min(dtype_bytes(job.precision.compute), dtype_bytes(held.dtype));
}

/// Whether all parameters are trained, with AdamW's states on the card.
bool has_all(const Job& job) {
  return job.runtime != Runtime::vramfit && job.optimizer == "adamw" &&
         job.optimizer_implementation != OptimizerImplementation::paged && job.offload.empty() && job.freeze.empty() &&
         !has_adapters(job);
}

}  // namespace

Bytes least_between_updates(const Graph& graph, const Job& job) {
  if (!has_all(job)) return {};
  Bytes all;
  for (const Parameter& parameter : graph.parameters) {
    const std::int64_t elements = element_count(parameter);
    constexpr std::int64_t kOfEach = 3;
    all += job.runtime == Runtime::deepspeed ? zero_weight_and_states(elements, job)
                                             : kOfEach * least_of_shard(elements, job);
  }
  return all;
}

Bytes least_while_updating(const Graph& graph, const Job& job) {
  if (!has_all(job)) return {};
  Bytes all = job.runtime == Runtime::deepspeed ? zero_bucket(job) : Bytes{};
  for (const Parameter& parameter : graph.parameters) {
    const std::int64_t elements = element_count(parameter);
    all = all + (job.runtime == Runtime::deepspeed ? least_of_zero(elements, job) : least_of_adamw(elements, job));
  }
  return all;
}

Bytes loaded_whole(const Graph& graph, const Job& job) {
  const bool is_whole = job.runtime == Runtime::pytorch && job.offload.empty();
  const bool is_parted_later = job.runtime == Runtime::deepspeed && job.quantization != "none";
  if (!is_whole && !is_parted_later) return {};
  const std::vector<HeldParameter> held = held_parameters(graph, job);
  Bytes whole;
  for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
    whole = whole + whole_weight(element_count(graph.parameters[p]), held[p], job);
  }
  return whole;
}

Bytes kept_by_zero(const Graph& graph, const Job& job) {
  const Bytes all = least_while_updating(graph, job);
  if (all.n > 0) return all;
  if (job.quantization != "none") return job.sharding == "full-shard" ? zero_bucket(job) : loaded_whole(graph, job);
  Bytes kept = zero_bucket(job);
  if (offload_of(job).parameters) return kept;
  for (const Parameter& parameter : graph.parameters) kept = kept + zero_weight(element_count(parameter), job);
  return kept;
}

}  // namespace vramfit
