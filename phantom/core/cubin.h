// What a cubin (an ELF file for a GPU) says of its kernels and variables. Format: the notes of `cuobjdump -elf`, whose
// output the tests compare with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "phantom/core/kernels.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

struct CubinVariable {
  std::int64_t bytes = 0;
  bool is_constant = false;        // kernels can't write it
  std::vector<std::byte> initial;  // empty: zeros
};

struct Cubin {
  std::map<std::string, KernelFacts, std::less<>> kernels;  // by mangled name
  std::map<std::string, CubinVariable, std::less<>> variables;
  int capability = 0;  // 90; 0 if it does not say
};

/// None if it isn't a cubin or is damaged.
PHANTOM_CORE std::optional<Cubin> read_cubin(std::span<const std::byte> image);

/// Bytes of an ELF image whose length the caller does not know; 0 if it is none.
PHANTOM_CORE std::size_t elf_bytes(const void* image);

}  // namespace vramfit::phantom
