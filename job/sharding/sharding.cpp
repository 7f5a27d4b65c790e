#include "job/sharding/sharding.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {

const Sharding& sharding_named(std::string_view name) {
  const auto* const row =
      std::ranges::find_if(kShardings, [&](const Sharding& s) { return s.name == name || s.fsdp_name == name; });
  if (row != kShardings.end()) return *row;
  std::vector<std::string> known;
  known.reserve(kShardings.size());
  for (const Sharding& s : kShardings) known.emplace_back(s.name);
  throw InputError("unknown sharding \"" + printable(name) + "\"" + did_you_mean(name, known));
}

std::int64_t reshard_ranks(const Job& job) {
  const auto* groups = std::get_if<ReshardGroups>(&job.reshard);
  return groups != nullptr && groups->ranks < job.mesh.shard ? groups->ranks : 0;
}

}  // namespace vramfit
