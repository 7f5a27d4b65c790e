// Where a model goes after the last step of its training.
#pragma once

#include <string>

namespace vramfit {

/// Folders, and what describes the model in each; "": it isn't written there.
struct FinalFolders {
  std::string model, config_json;        // the whole model, as transformers reads it
  std::string adapters, adapter_config;  // its adapters, as PEFT reads them
};

}  // namespace vramfit
