// Adapters under FSDP2 as axolotl prepares it (0.19, monkeypatch/accelerate/fsdp2.py): each of an adapter's matrices is
// a group of its own. Its kernels never run the modules that these belong to, but gather each matrix themselves
// (kernels/lora.py: get_lora_parameters), and nobody lets go of it before backward ends.
#pragma once

#include <utility>
#include <vector>

#include "program/pytorch/wrappers/fsdp2.h"
#include "program/pytorch/wrappers/module_hooks.h"

namespace vramfit::eager {

class Fsdp2Adapters final : public ModuleHooks {
 public:
  Fsdp2Adapters(Fsdp2& fsdp, std::size_t parameters) : fsdp_(fsdp), groups_(parameters, -1) {}

  void add(int parameter, int group) { groups_.at(static_cast<std::size_t>(parameter)) = group; }

  Tensor enter(const Submodule& /*module*/, Tensor input) override { return input; }
  Tensor leave(const Submodule& /*module*/, Tensor output) override { return output; }
  void reach(const Submodule& /*module*/, int parameter) override {
    const int group = groups_.at(static_cast<std::size_t>(parameter));
    if (group >= 0) fsdp_.gather_now(group);
  }
  bool replaces_layers() const override { return false; }
  Tensor values_of(int /*parameter*/) const override { return {}; }

 private:
  Fsdp2& fsdp_;
  std::vector<int> groups_;  // by parameter; -1: not an adapter's
};

}  // namespace vramfit::eager
