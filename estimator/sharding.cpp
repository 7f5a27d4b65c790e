#include "estimator/sharding.h"

#include <algorithm>
#include <string>

#include "model_specs/error.h"

namespace vramfit {

const Sharding& sharding_named(std::string_view name) {
  const auto row =
      std::ranges::find_if(kShardings, [&](const Sharding& s) { return s.name == name || s.fsdp_name == name; });
  if (row != kShardings.end()) return *row;
  std::string known;
  for (const Sharding& s : kShardings) known += (known.empty() ? "" : ", ") + std::string(s.name);
  throw InputError("sharding \"" + std::string(name) + "\": unknown (known: " + known + ")");
}

}  // namespace vramfit
