#include "executor/checkpoint/write_torch.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {
namespace {

constexpr std::int64_t kStagedElements = std::int64_t{1} << 22;  // on their way to a device, at a time

template <typename Number>
void convert(std::span<const float> values, void* into, std::int64_t offset) {
  auto* out = static_cast<Number*>(into) + offset;
  std::transform(values.begin(), values.end(), out, [](float value) { return static_cast<Number>(value); });
}

// Into host memory that holds elements of `type`.
void convert(std::span<const float> values, at::ScalarType type, void* into, std::int64_t offset) {
  if (type == at::kFloat) {
    convert<float>(values, into, offset);
  } else if (type == at::kBFloat16) {
    convert<c10::BFloat16>(values, into, offset);
  } else if (type == at::kHalf) {
    convert<c10::Half>(values, into, offset);
  } else {
    throw NotModelled(fmt::format("weights stored as {}", c10::toString(type)));
  }
}

void check_place(const at::Tensor& into, std::int64_t offset, std::int64_t count) {
  if (!into.is_contiguous() || offset < 0 || count > into.numel() - offset) {
    throw FaultError(fmt::format("weights: {} elements don't fit at {} of {}", count, offset, into.numel()));
  }
}

bool is_same_type(StoredFloat stored, at::ScalarType type) {
  switch (stored) {
    case StoredFloat::f32:
      return type == at::kFloat;
    case StoredFloat::bf16:
      return type == at::kBFloat16;
    case StoredFloat::f16:
      return type == at::kHalf;
  }
  return false;
}

}  // namespace

void write_numbers(at::Tensor& into, std::int64_t offset, std::span<const float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  check_place(into, offset, count);
  if (into.is_cpu() || count == 0) {
    convert(values, into.scalar_type(), into.data_ptr(), offset);
    return;
  }
  std::vector<float> staged(values.size());  // wide enough for every type
  convert(values, into.scalar_type(), staged.data(), 0);
  into.narrow(0, offset, count).copy_(tensor_over(staged.data(), count, into.scalar_type()));
}

std::span<char> stored_place(at::Tensor& into, std::int64_t offset, StoredFloat type, std::int64_t count) {
  check_place(into, offset, count);
  if (count == 0 || !into.is_cpu() || !is_same_type(type, into.scalar_type())) return {};
  const std::int64_t width = stored_bytes(type);
  return {static_cast<char*>(into.data_ptr()) + offset * width, static_cast<std::size_t>(count * width)};
}

void write_numbers(at::Tensor& into, std::int64_t offset, const StoredNumbers& numbers) {
  if (const std::span<char> place = stored_place(into, offset, numbers.type, numbers.count); !place.empty()) {
    std::memcpy(place.data(), numbers.data, place.size());
    return;
  }
  if (is_same_type(numbers.type, into.scalar_type())) {
    check_place(into, offset, numbers.count);
    into.narrow(0, offset, numbers.count)
        .copy_(tensor_over(const_cast<char*>(numbers.data), numbers.count, into.scalar_type()));
    return;
  }
  // A copy to a device waits for the device, so it should be worth it.
  const std::int64_t most = into.is_cpu() ? 16384 : 262144;
  std::vector<float> values(static_cast<std::size_t>(std::min(most, numbers.count)));
  for (std::int64_t done = 0; done < numbers.count; done += most) {
    const std::span<float> block =
        std::span(values).first(static_cast<std::size_t>(std::min(most, numbers.count - done)));
    widen_numbers(numbers, done, block);
    write_numbers(into, offset + done, block);
  }
}

TensorSize size_of(const at::Tensor& tensor) {
  return {.elements = tensor.numel(), .element_bytes = static_cast<std::int64_t>(tensor.element_size())};
}

bool has_type(const at::Tensor& tensor, std::optional<StoredFloat> type) {
  return type ? is_same_type(*type, tensor.scalar_type()) : tensor.scalar_type() == at::kByte;
}

void write_bytes(at::Tensor& into, std::int64_t offset, std::span<char> bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size() / into.element_size());
  check_place(into, offset, count);
  into.narrow(0, offset, count).copy_(tensor_over(bytes.data(), count, into.scalar_type()));
}

void write_from_host(at::Tensor& into, std::int64_t count,
                     const std::function<void(at::Tensor&, std::int64_t, std::int64_t)>& fill) {
  check_place(into, 0, count);
  if (into.is_cpu()) return fill(into, 0, count);
  const std::int64_t most = std::min(count, kStagedElements);
  const auto staged = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(most * into.element_size()));
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t here = std::min(most, count - done);
    at::Tensor host = tensor_over(staged.get(), here, into.scalar_type());
    fill(host, done, here);
    into.narrow(0, done, here).copy_(host);
  }
}

int writing_threads() { return at::get_num_threads(); }

}  // namespace vramfit
