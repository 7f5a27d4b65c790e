#include "executor/agreement.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <functional>

#include "job/run_flags.h"

namespace vramfit {

namespace {

std::string hash_of(const std::string& text) { return fmt::format("{:016x}", std::hash<std::string>{}(text)); }

}  // namespace

std::string agreement(const std::string& plan_text, const RunOptions& options, DeviceKind device) {
  std::string flags;
  for (const RunFlag& flag : run_flags()) {
    if (flag.shared != nullptr) flags += fmt::format("{} {};", flag.name, flag.shared(options));
  }
  const std::string program = "vramfit " VRAMFIT_VERSION ", LibTorch " TORCH_VERSION;
  return fmt::format("plan {}, flags {}, {} ranks, program {}", hash_of(plan_text), hash_of(flags),
                     device == DeviceKind::cpu ? "CPU" : "CUDA", hash_of(program));
}

}  // namespace vramfit
