// Functions of CUDA's runtime, which LibTorch has loaded: nothing else here needs it to be linked.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

#include "base/error.h"

namespace vramfit {

/// Throws FaultError if the runtime that is loaded lacks it. `what` needs it.
template <typename Function>
Function* runtime_function(std::string_view what, const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) throw FaultError(fmt::format("{}: CUDA's runtime has no {}", what, name));
  return found;
}

/// What the runtime says of a status that isn't 0.
inline const char* runtime_error(std::string_view what, int status) {
  return runtime_function<const char*(int)>(what, "cudaGetErrorString")(status);
}

/// Gives memory back by the function of that name. False where the runtime has gone: the memory goes with the process.
inline bool give_back(std::string_view what, const char* name, void* memory) noexcept {
  try {
    (void)runtime_function<int(void*)>(what, name)(memory);
    return true;
  } catch (const FaultError&) {
    return false;
  }
}

}  // namespace vramfit
