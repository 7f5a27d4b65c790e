// What a reduction makes of the ranks' values. Host arithmetic on small data: 16- and 8-bit floats are summed in fp32
// in the order of the ranks and rounded once, so last bits can differ from a ring's, as they do between NCCL's
// algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <nccl.h>

namespace vramfit::phantom {

enum class Combine { sum, product, maximum, minimum, average };

struct Reduction {
  ncclDataType_t type = ncclFloat32;
  Combine combine = Combine::sum;
};

/// Bytes of an element; 0 for a value that is no type of nccl.h.
std::int64_t element_bytes(ncclDataType_t type);
const char* type_name(ncclDataType_t type);

/// One rank's values, and the element of the reduction's type that they are multiplied by first (null: as they are).
struct Part {
  const std::byte* values = nullptr;
  const std::byte* scale = nullptr;
};

/// Combines `count` elements of each part, in order, into `out`, which may be one of the parts.
void reduce(const Reduction& reduction, std::span<const Part> parts, std::int64_t count, std::byte* out);

/// The same for `ranks` parts that are all equal to `part`.
void reduce_equal(const Reduction& reduction, Part part, std::int64_t ranks, std::int64_t count, std::byte* out);

}  // namespace vramfit::phantom
