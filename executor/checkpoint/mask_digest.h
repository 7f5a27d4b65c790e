// A checksum that tells one file of gradient masks from another.
#pragma once

#include <cstdint>
#include <string>

#include "base/files/file.h"

namespace vramfit {

inline constexpr FileRole kMaskFile{"mask", ExitCode::model};

/// CRC-32C of the masks that safetensors `path` holds: their names, shapes and elements, in the order of names. Where
/// the file lies, how many files it is and whether elements are BOOL or U8 makes no difference. Holds 1 MiB at a time.
/// Throws ModelError as list_tensors and File::read do.
std::uint32_t mask_digest(const std::string& path);

}  // namespace vramfit
