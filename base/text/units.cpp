#include "base/text/units.h"

#include <fmt/format.h>

#include "base/error.h"

namespace vramfit {

void size_overflows() { throw InputError("size overflows 64 bits"); }

std::string format_gib(Bytes bytes, int digits) { return fmt::format("{:.{}f} GiB", gib_of(bytes), digits); }

std::string format_size(Bytes bytes) {
  const auto in = [&](Bytes unit, const char* name) {
    return fmt::format("{:.2f} {}", static_cast<double>(bytes.n) / static_cast<double>(unit.n), name);
  };
  if (bytes >= kGiB) return in(kGiB, "GiB");
  if (bytes >= kMiB) return in(kMiB, "MiB");
  if (bytes >= kKiB) return in(kKiB, "KiB");
  return fmt::format("{} byte{}", bytes.n, bytes.n == 1 ? "" : "s");
}

}  // namespace vramfit
