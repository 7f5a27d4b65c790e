// The axes of a device mesh as a table, for whoever reads or writes them by name.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

struct MeshAxis {
  std::string_view name;
  std::int64_t Mesh::*ranks;
  std::int64_t Coords::*place;
};

inline constexpr std::array kMeshAxes{
#define AXIS(x) MeshAxis{#x, &Mesh::x, &Coords::x},
#include "job/sharding/axes.def"
#undef AXIS
};

/// Known by name, not modelled yet.
inline constexpr std::array kOtherAxes{
#define AXIS(x)
#define OTHER_AXIS(name) std::string_view{name},
#include "job/sharding/axes.def"
#undef OTHER_AXIS
#undef AXIS
};

/// "replicate=1,shard=8".
std::string mesh_text(const Mesh& mesh);

}  // namespace vramfit
