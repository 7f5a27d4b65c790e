#include "estimator/run_effect_text.h"

#include <fmt/format.h>

namespace vramfit {

std::string_view save_kind_of(const RunEffects& run) {
  if (run.saves_adapters) return "adapters";
  if (run.saves && run.saves_full) return "both";
  if (run.saves_full) return "full";
  return run.saves ? "sharded" : "none";
}

std::string run_effect_flags(const RunEffects& run) {
  std::string flags = run.clip ? "" : " --no-clip";
  if (saves_anything(run)) flags += fmt::format(" --save-kind {}", save_kind_of(run));
  return flags;
}

}  // namespace vramfit
