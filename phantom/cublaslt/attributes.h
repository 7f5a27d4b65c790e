// Descriptors of cuBLASLt: callers may hold them on their own stack, so a descriptor carries a number, and what was set
// is kept by that number.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace vramfit::phantom::cublaslt {

/// A fresh number for a descriptor: nothing is set yet.
std::uint64_t new_descriptor();
void forget_descriptor(std::uint64_t descriptor);

/// As the Set and Get functions of cublasLt.h; an attribute that was never set has its documented default, `fallback`,
/// in as many bytes as are asked for.
cublasStatus_t set_attribute(std::uint64_t descriptor, int attribute, const void* buffer, std::size_t bytes);
cublasStatus_t get_attribute(std::uint64_t descriptor, int attribute, void* buffer, std::size_t bytes,
                             std::size_t* written, std::uint64_t fallback);

}  // namespace vramfit::phantom::cublaslt
