// Reads numbers from a file into a tensor without mapping it: a file that shrinks meanwhile is an error, not a signal.
#pragma once

#include <cstdint>

#include "base/files/file.h"
#include "base/numbers/stored_numbers.h"

namespace at {
class Tensor;
}

namespace vramfit {

/// A stretch of a file that holds `count` numbers.
struct NumbersInFile {
  StoredFloat type = StoredFloat::f32;
  std::int64_t begin = 0;  // bytes from the start of the file
  std::int64_t count = 0;
};

/// Reads them into elements `offset` and up of the 1-D contiguous tensor `into`: straight into its memory where the
/// types agree and it lies on the host, else through a buffer of 1 MiB, rounded to nearest. Throws as File::read does.
void read_numbers(const File& file, const NumbersInFile& numbers, at::Tensor& into, std::int64_t offset);

}  // namespace vramfit
