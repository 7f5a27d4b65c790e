// What a library may hang on each module of a model, down to single layers (torch.nn.Module's hooks), as DeepSpeed's
// ZeRO-3 does, and FSDP1 on adapters. Other wrappers are content with whole blocks (wrapper.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/pytorch/walk/heap.h"

namespace vramfit::eager {

/// A module as hooks see it.
struct Submodule {
  std::string name;                 // of this one among all of the model's
  std::vector<int> parameters;      // its own, by index in the graph
  bool is_called_by_names = false;  // what it is passed: hooks don't see that
};

class ModuleHooks {
 public:
  ModuleHooks() = default;
  ModuleHooks(const ModuleHooks&) = delete;
  ModuleHooks& operator=(const ModuleHooks&) = delete;
  ModuleHooks(ModuleHooks&&) = delete;
  ModuleHooks& operator=(ModuleHooks&&) = delete;
  virtual ~ModuleHooks() = default;

  /// Around its forward: the input as the module sees it, and the output as its caller does.
  virtual Tensor enter(const Submodule& module, Tensor input) = 0;
  virtual Tensor leave(const Submodule& module, Tensor output) = 0;
  /// A parameter of another module is looked at within `module`, before that other one is entered.
  virtual void reach(const Submodule& module, int parameter) = 0;
  /// Whether layers are the library's own, which keep parameters themselves and not their values.
  virtual bool replaces_layers() const { return true; }
  /// A parameter's values as they are now: those that backward reads may be others, gathered anew. Of such layers.
  virtual Tensor values_of(int parameter) const = 0;
  /// The type that a parameter has now for who looks at it from outside its module; nothing: that of its storage.
  virtual std::optional<Dtype> seen_dtype(int /*parameter*/) const { return std::nullopt; }
};

}  // namespace vramfit::eager
