#include "job/sharding/mesh.h"

#include <fmt/format.h>

namespace vramfit {

std::string mesh_text(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : kMeshAxes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, mesh.*axis.ranks);
  }
  return text;
}

}  // namespace vramfit
