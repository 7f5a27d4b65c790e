// Writing numbers into a tensor's memory, whatever its element type and device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/numbers/stored_numbers.h"

namespace at {
class Tensor;
}

namespace vramfit {

/// Writes `values` at elements `offset` and up of the 1-D contiguous tensor `into`, rounded to its element type (fp32,
/// bf16, fp16). On CPU this allocates no tensor memory, and disjoint ranges may be written from several threads.
void write_numbers(at::Tensor& into, std::int64_t offset, std::span<const float> values);

/// The same from numbers as a file stores them; equal element types are copied as they are.
void write_numbers(at::Tensor& into, std::int64_t offset, const StoredNumbers& numbers);

struct TensorSize {
  std::int64_t elements = 0, element_bytes = 0;
};
TensorSize size_of(const at::Tensor& tensor);

/// Whether a file has its element type under `type`; none: bytes.
bool has_type(const at::Tensor& tensor, std::optional<StoredFloat> type);

/// Writes bytes of numbers of the tensor's own element type at element `offset` and up.
void write_bytes(at::Tensor& into, std::int64_t offset, std::span<char> bytes);

/// Where `count` numbers at element `offset` may be read into as a file stores them: the tensor's own memory; empty
/// when they have to be converted or carried to another device.
std::span<char> stored_place(at::Tensor& into, std::int64_t offset, StoredFloat type, std::int64_t count);

/// Calls `fill` with a tensor in host memory, the place in `into` that it stands for, and how many of its elements:
/// with `into` itself if it is there, else block by block with one that is copied to its device.
void write_from_host(at::Tensor& into, std::int64_t count,
                     const std::function<void(at::Tensor& host, std::int64_t offset, std::int64_t count)>& fill);

/// Threads that LibTorch would use to write host memory.
int writing_threads();

}  // namespace vramfit
