// FSDP units: which parameters are gathered together, and where each lies in the gathered storage and
// in a rank's shard. Read by the estimator for bytes and by the executor for offsets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "job/job.h"
#include "job/parameters/quantization.h"
#include "model_specs/graph.h"

namespace vramfit {

/// One parameter inside its unit. Rows are dim 0, padded so that every rank holds the same number.
struct UnitParameter {
  int parameter = -1;  // index in Graph::parameters
  bool trainable = true;
  Dtype dtype = Dtype::f32;                    // between steps; uint8 if quantized
  const Quantization* quantization = nullptr;  // how its codes and scales are stored
  int storage = 0;                             // index in Unit::storages: the one of that dtype or format
  const Quantization* trained_as = nullptr;    // of a trained matrix whose shard is in host memory: the card's codes
  bool is_scaled = false;                      // a scale for what a rank has of it; its place is that in the unit
  bool has_fp8_gradient = false;               // between reductions; its scale's place is the parameter's in the unit
  std::int64_t rows = 0;                       // dim 0
  std::int64_t row_elements = 0;
  std::int64_t rows_per_rank = 0;    // ceil(rows / shards)
  std::int64_t shard_elements = 0;   // rows_per_rank * row_elements
  std::int64_t stored_elements = 0;  // of `dtype`: shard_elements, or bytes of codes and scales
  std::int64_t padded_elements = 0;  // shard_elements * shards
  std::int64_t gathered_offset = 0;  // elements of compute dtype from the unit's start; 512-byte aligned
  std::int64_t shard_offset = 0;     // elements from its storage's start (UnitStorage::first), 512-byte aligned in the
                                     // storage's dtype; of a trainable one from the gradients' and the states' starts
  std::int64_t kept_elements = 0;    // padded_elements / UnitLayout::reshard_ranks
  std::int64_t kept_offset = 0;      // elements of compute dtype from the kept slice's start, 512-byte aligned
  std::int64_t codes_offset = 0;     // with trained_as: bytes from the start of the card's codes, 512-byte aligned
  std::int64_t codes_bytes = 0;      // codes and scales there
  bool operator==(const UnitParameter&) const = default;
};

/// Rows of the parameter that rank `shard` of those that it is split over holds, without padding.
inline std::int64_t own_rows(const UnitParameter& p, std::int64_t shard) {
  return std::clamp<std::int64_t>(p.rows - p.rows_per_rank * shard, 0, p.rows_per_rank);
}

/// What a rank holds of a unit's parameters of one dtype or format: one flat tensor, trainable parameters first. Of
/// numbers that have scales, these are a tensor of their own.
struct UnitStorage {
  Dtype dtype = Dtype::f32;
  const Quantization* quantization = nullptr;
  bool is_scaled = false;           // of numbers that have scales beside them
  std::int64_t first = 0;           // shard_offset of what it begins with: what trained parameters before it take
  std::int64_t elements = 0;        // of `dtype`
  std::int64_t whole_elements = 0;  // of the compute dtype, which a gather makes of them
  bool operator==(const UnitStorage&) const = default;
};

/// How gathers find a parameter: null for as it is stored, else as codes.
inline const Quantization* codes_format(const UnitParameter& p) {
  return p.trained_as != nullptr ? p.trained_as : p.quantization;
}

/// A unit's shard is a storage for each dtype and format that its parameters have. All trainable ones are in the first
/// storage, but for masters that have scales (below); gradients and states are flat tensors over what is trained.
/// Gradients that are kept in FP8 come first there: codes of one byte in a tensor of their own, each at its parameter's
/// offset, and the gradient shard has the others. Trained matrices that have scales are the first storage by
/// themselves, and the other trained parameters begin the second one; offsets among gradients and states go on from the
/// one to the other. Where trained matrices are codes on the card, that storage is in host memory and has nothing else;
/// the card has their codes in a tensor of bytes, and the rest of the storage as it is.
struct Unit {
  std::string name;  // "layers.3", "embed", "head", "root", or a module's: "model.layers.3.mlp"
  std::vector<UnitParameter> parameters;
  /// Parameters in the order in which their gradient buffers are reduced: largest first, so that the largest pair of
  /// piece and buffer exists while little else does.
  std::vector<int> reduce_order;
  std::vector<UnitStorage> storages;
  Dtype compute = Dtype::f32;
  Dtype reduce = Dtype::f32;               // dtype of the sum over ranks
  Dtype trained = Dtype::f32;              // of trained parameters as updates read and write them
  Dtype gradient = Dtype::f32;             // of the gradient shard
  std::int64_t gathered_elements = 0;      // of compute dtype
  std::int64_t trainable_elements = 0;     // those that have gradients and states: the first storage's prefix, or all
                                           // of it and the second one's prefix where it has scales
  std::int64_t fp8_gradient_elements = 0;  // the prefix of those whose gradients are kept in FP8
  std::int64_t fp8_gradients = 0;          // how many parameters these are, the unit's first ones
  bool sends_fp8_gradients = false;        // those, to the ranks that keep them
  std::int64_t scaled_elements = 0;        // the prefix of what is trained that has scales: the first storage
  std::int64_t scales = 0;                 // how many parameters these are, the unit's first ones
  std::int64_t kept_elements = 0;          // of compute dtype, what a rank keeps of it under --reshard N; 0 without
  bool gathered_is_shard = false;          // one shard, one storage, in the compute dtype: no gather, no copy
  std::int64_t coded_elements = 0;         // of the first storage: the prefix that is codes on the card
  std::int64_t codes_bytes = 0;  // of those codes; 0: there are none, and the first storage is where others are
};

/// What a rank holds of all of the unit's parameters.
Bytes shard_bytes(const Unit& unit);
/// What of it the card has where parameters aren't offloaded: of a storage in host memory, codes and the rest.
Bytes card_bytes(const Unit& unit);
/// Of the first storage, what the card has as it is beside the codes of the others.
inline std::int64_t plain_elements(const Unit& unit) { return unit.storages.front().elements - unit.coded_elements; }

/// Of the unit's first `count` parameters, which take `elements` together: what one of them takes with the room behind
/// it, up to the next one's shard_offset.
inline std::int64_t elements_until_next(const Unit& unit, std::size_t slot, std::int64_t count, std::int64_t elements) {
  const std::size_t next = slot + 1;
  const bool is_last = next == static_cast<std::size_t>(count);
  return (is_last ? elements : unit.parameters[next].shard_offset) - unit.parameters[slot].shard_offset;
}
/// Where a parameter begins in its storage.
inline std::int64_t storage_offset(const Unit& unit, const UnitParameter& p) {
  return p.shard_offset - unit.storages[static_cast<std::size_t>(p.storage)].first;
}
/// What is trained of the storage after the one whose numbers have scales.
inline std::int64_t trained_beside_scaled(const Unit& unit) { return unit.trainable_elements - unit.scaled_elements; }
/// Of a parameter's numbers where whole weights are written: as they are updated.
inline Dtype written_dtype(const Unit& unit, const UnitParameter& p) { return p.is_scaled ? unit.trained : p.dtype; }

/// Elements of the gradient shard: of all that is trained, but for what is kept in FP8.
inline std::int64_t gradient_shard_elements(const Unit& unit) {
  return unit.trainable_elements - unit.fp8_gradient_elements;
}
/// Of gradients that are kept in FP8, with their scales.
inline Bytes gradient_codes_bytes(const Unit& unit) {
  return unit.fp8_gradient_elements * dtype_bytes(Dtype::f8_e4m3) + unit.fp8_gradients * dtype_bytes(Dtype::f32);
}
/// Of a gradient shard, and of what is kept in FP8 beside it.
Bytes gradient_bytes(const Unit& unit);

struct UnitLayout {
  std::vector<Unit> units;
  std::vector<int> unit_of_parameter;              // index in `units`
  std::vector<int> slot_of_parameter;              // index in Unit::parameters
  std::vector<std::vector<int>> units_of_segment;  // units that each segment touches
  std::int64_t shards = 1;                         // ranks a parameter is split over
  std::int64_t reshard_ranks = 0;                  // of them, those that keep slices of one copy after forward
};

/// Element type of the gradient that an op's backward writes for its parameters: the compute dtype, or the
/// reduce dtype where many contributions are summed (embedding tables, the head under chunked loss).
Dtype gradient_dtype(OpKind kind, const Precision& precision);

/// Whether the gradient that an op of `kind` writes for `parameter` goes straight into the unit's gradient shard.
bool is_direct_gradient(OpKind kind, int parameter, const Precision& precision, const UnitLayout& layout);

/// Units in the order of their first use. Throws InputError for a wrapping that the model has no modules for.
UnitLayout lay_out_units(const Graph& graph, const Job& job);

}  // namespace vramfit
