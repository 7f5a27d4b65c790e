#include "program/readers/collective_sizes.h"

#include <fmt/format.h>

namespace vramfit::program {

std::optional<std::string> size_fault(const Program& program, const Start& start, const Place& place) {
  const std::int64_t members = program.groups[static_cast<std::size_t>(start.axis)].members;
  Bytes held;
  for (std::uint32_t i = 0; i < start.accesses.count; ++i) {
    const Access& access = place.code.accesses[start.accesses.first + i];
    if (access.buffer >= 0) held += place.buffer(access.buffer).bytes;
  }
  const bool has_parts = start.collective == Collective::all_gather || start.collective == Collective::reduce_scatter;
  if (has_parts && checked_mul(start.part.n, members) != start.bytes.n) {
    return fmt::format("collective: {} ranks' parts of {} bytes are not its {} bytes", members, start.part.n,
                       start.bytes.n);
  }
  if (start.collective == Collective::all_to_all && start.bytes.n % members != 0)
    return fmt::format("collective: {} bytes can't be shared between {} ranks", start.bytes.n, members);
  if (start.expected > start.bytes) return "collective: more is expected than its bound";
  if (start.bytes > held) {
    return fmt::format("collective: of {} bytes, over buffers of {}", start.bytes.n, held.n);
  }
  return std::nullopt;
}

}  // namespace vramfit::program
