// The whole model as transformers reads it: DIR/model.safetensors and DIR/config.json.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "executor/checkpoint/files.h"
#include "model_specs/graph.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// What a checkpoint of all parameters begins with: each in its dtype, under their checkpoint names, unit by unit.
std::string full_header(const Graph& graph, const UnitLayout& layout);

/// Rank 0's files. Each appears whole or not at all; the weights come last.
class FullCheckpointFile {
 public:
  FullCheckpointFile(FileCalls& files, const std::string& directory, const std::string& config_json,
                     const std::string& header);
  ~FullCheckpointFile();
  FullCheckpointFile(const FullCheckpointFile&) = delete;
  FullCheckpointFile& operator=(const FullCheckpointFile&) = delete;
  FullCheckpointFile(FullCheckpointFile&&) = delete;
  FullCheckpointFile& operator=(FullCheckpointFile&&) = delete;

  /// The next parameter's rows, 1-D. What isn't on CPU goes through `on_host`, bytes of which there are enough.
  void append(const at::Tensor& rows, const at::Tensor& on_host);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vramfit
