#include "executor/run/agreement.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <functional>

#include "job/run/run_flags.h"

namespace vramfit {

namespace {

std::string hash_of(const std::string& text) { return fmt::format("{:016x}", std::hash<std::string>{}(text)); }

}  // namespace

std::string agreement(const AgreedFacts& facts) {
  std::string flags;
  for (const RunFlag& flag : run_flags()) {
    if (const auto text = shared_text(flag, facts.options)) flags += fmt::format("{} {};", flag.name, *text);
  }
  const std::string build = "vramfit " VRAMFIT_VERSION ", LibTorch " TORCH_VERSION;
  return fmt::format("plan {}, flags {}, {} ranks, program {}, build {}", hash_of(facts.plan_text), hash_of(flags),
                     facts.device == DeviceKind::cpu ? "CPU" : "CUDA", facts.fingerprint, hash_of(build));
}

}  // namespace vramfit
