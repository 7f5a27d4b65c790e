// What rank 0 writes at the end: the whole model as transformers reads it, DIR/model.safetensors and DIR/config.json,
// or the adapters as PEFT does, DIR/adapter_model.safetensors and DIR/adapter_config.json.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/checkpoint/files.h"
#include "executor/checkpoint/final_folders.h"
#include "model_specs/graph.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// What a checkpoint of all parameters begins with: each in its dtype, under their checkpoint names, unit by unit.
std::string full_header(const Graph& graph, const UnitLayout& layout);

/// The same of the adapters, under PEFT's names.
std::string adapter_header(const Graph& graph, const UnitLayout& layout);

/// A folder of weights and what describes them.
struct WrittenFolder {
  std::string directory;
  std::string_view config_name, weights_name;
  std::string config, header;
};

/// Rank 0's files. Each appears whole or not at all; the weights come last.
class FullCheckpointFile {
 public:
  FullCheckpointFile(FileCalls& files, const WrittenFolder& folder);
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

/// All that rank 0 writes at the end.
class FinalFiles {
 public:
  FinalFiles(FileCalls& files, const FinalFolders& folders, const Graph& graph, const UnitLayout& layout);

  /// The next parameter of the program, to each file that has it; as FullCheckpointFile::append.
  void append(int parameter, const at::Tensor& rows, const at::Tensor& on_host);
  void finish();

 private:
  std::unique_ptr<FullCheckpointFile> model_, adapters_;
  std::vector<bool> is_adapter_;  // by parameter
};

}  // namespace vramfit
