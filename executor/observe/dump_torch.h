// Writes full tensors as safetensors, one after the other, so that only one is whole in memory at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/files/result_file.h"
#include "executor/sharding/collectives.h"
#include "executor/sharding/unit_state_torch.h"
#include "model_specs/graph.h"

namespace vramfit {

struct DumpedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// A .safetensors file of fp32 tensors, whose data is appended in the order of the header.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<DumpedTensor>& tensors);
  /// The next tensor's data: any float dtype, any device.
  void append(const at::Tensor& tensor);
  /// After the last tensor. Like the others throws FaultError when something can't be written.
  void close() { file_.commit(); }

 private:
  ResultFile file_;
};

/// Writes a file with one tensor.
void dump_tensor(const std::string& name, const at::Tensor& tensor, const std::string& path);

/// What is written of a parameter: the rank's part of it, or of its gradient, which may be undefined.
using PartOf = at::Tensor (*)(const UnitState& unit, const UnitParameter& p);
inline constexpr PartOf kShard = [](const UnitState& unit, const UnitParameter& p) { return unit.numbers(p); };
inline constexpr PartOf kGradients = [](const UnitState& unit, const UnitParameter& p) {
  const at::Tensor all = unit.gradients();
  return all.defined() ? UnitState::slice(all, p) : all;
};

/// Writes the parameters (or gradients) of all units to `path` on rank 0; a collective call. Trainable ones only
/// when `trainable_only`. A tensor that isn't there is written as zeros.
struct DumpContext {
  const Graph& graph;
  Collectives& shard_group;
  bool writes = false;  // whether this rank writes the file
  double divisor = 1;   // of every element: the loss scale of gradients
};
void dump_units(const DumpContext& context, const std::vector<UnitState>& units, PartOf part, bool trainable_only,
                const std::string& path);

}  // namespace vramfit
