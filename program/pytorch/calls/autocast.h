// torch.autocast as a scope.
#pragma once

#include <optional>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// Autocast until the end of the scope, unless that is what there is already.
class Autocast {
 public:
  Autocast(Torch& torch, std::optional<Dtype> dtype) : torch_(torch), is_new_(torch.autocast() != dtype) {
    if (is_new_) torch_.set_autocast(dtype);
  }
  ~Autocast() {
    if (is_new_) torch_.set_autocast(std::nullopt);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  Autocast(Autocast&&) = delete;
  Autocast& operator=(Autocast&&) = delete;

 private:
  Torch& torch_;
  bool is_new_;
};

}  // namespace vramfit::eager
