#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <array>
#include <cstdlib>
#include <new>
#include <numeric>

#include "base/error.h"
#include "executor/meter/managed_memory.h"
#include "executor/meter/meter.h"
#include "executor/meter/registered_memory.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrain = 32768;

template <typename To, typename From>
void add_range(To* to, const From* from, std::int64_t first, std::int64_t end) {
  for (std::int64_t i = first; i < end; ++i)
    to[i] = static_cast<To>(static_cast<float>(to[i]) + static_cast<float>(from[i]));
}

template <typename To>
void add_cpu(at::Tensor& to, const at::Tensor& from) {
  To* target = to.mutable_data_ptr<To>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, from.scalar_type(), "add_into", [&] {
    const auto* source = from.const_data_ptr<scalar_t>();
    at::parallel_for(0, to.numel(), kGrain,
                     [&](std::int64_t first, std::int64_t end) { add_range(target, source, first, end); });
  });
}

/// In interleaved sums: a single one would wait for each addition before the next.
template <typename Scalar>
double sum_of_squares_range(const Scalar* values, std::int64_t count) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + static_cast<std::int64_t>(kLanes) <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + static_cast<std::int64_t>(lane)]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

template <typename Scalar>
double sum_of_squares_cpu(const Scalar* values, std::int64_t count) {
  std::vector<double> partial(static_cast<std::size_t>(ceil_div(count, kGrain)), 0.0);
  at::parallel_for(0, static_cast<std::int64_t>(partial.size()), 1, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t chunk = first; chunk < end; ++chunk) {
      const std::int64_t start = chunk * kGrain;
      partial[static_cast<std::size_t>(chunk)] = sum_of_squares_range(values + start, std::min(kGrain, count - start));
    }
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

constexpr std::int64_t kHostAlignment = 64, kPage = 4096;

/// Pages of its own, registered with the driver: PyTorch's pool of pinned memory would round up to a power of two.
at::Tensor pinned_tensor(std::int64_t elements, Dtype dtype) {
  const Bytes bytes = elements * dtype_bytes(dtype);
  void* memory = std::aligned_alloc(kPage, static_cast<std::size_t>(round_up(bytes.n, kPage)));
  if (memory == nullptr) throw std::bad_alloc();
  register_host_memory(memory, bytes);
  const auto release = [bytes](void* held) {
    unregister_host_memory(held, bytes);
    std::free(held);
  };
  return at::from_blob(memory, {elements}, release, at::TensorOptions().dtype(scalar_type(dtype)));
}

/// The card's to look at, wherever its pages are.
at::Tensor managed_tensor(std::int64_t elements, Dtype dtype, at::Device device) {
  const Bytes bytes = elements * dtype_bytes(dtype);
  const auto release = [bytes](void* held) { free_managed(held, bytes); };
  const auto options = at::TensorOptions().dtype(scalar_type(dtype)).device(device);
  return at::from_blob(allocate_managed(bytes), {elements}, {1}, release, options, device);
}

at::Tensor host_tensor(std::int64_t elements, Dtype dtype, const std::string& label) {
  const Bytes bytes = elements * dtype_bytes(dtype);
  void* memory = std::aligned_alloc(kHostAlignment, static_cast<std::size_t>(round_up(bytes.n, kHostAlignment)));
  if (memory == nullptr) throw std::bad_alloc();
  Meter::instance().host_allocated(memory, bytes, label);
  const auto release = [](void* held) {
    Meter::instance().host_freed(held);
    std::free(held);
  };
  return at::from_blob(memory, {elements}, release, at::TensorOptions().dtype(scalar_type(dtype)));
}

}  // namespace

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::f16:
      return at::kHalf;
    case Dtype::f8_e4m3:
      return at::kFloat8_e4m3fn;
    case Dtype::f8_e5m2:
      return at::kFloat8_e5m2;
    case Dtype::i64:
      return at::kLong;
    case Dtype::i32:
      return at::kInt;
    case Dtype::u8:
      return at::kByte;
  }
  throw NotModelled("element type");
}

at::Tensor allocate_tensor(const std::vector<std::int64_t>& sizes, Dtype dtype, const TensorPlacement& placement) {
  std::int64_t elements = 1;
  for (std::int64_t size : sizes) elements = checked_mul(elements, size);
  if (elements == 0) return {};
  if (placement.space == program::Space::host) return host_tensor(elements, dtype, placement.label);
  if (placement.space == program::Space::pinned) return pinned_tensor(elements, dtype);
  if (placement.space == program::Space::managed) return managed_tensor(elements, dtype, placement.device);
  const LabelScope scope(placement.category, placement.label);
  return at::empty(sizes, at::TensorOptions().dtype(scalar_type(dtype)).device(placement.device));
}

at::Tensor tensor_over(void* memory, std::int64_t elements, at::ScalarType type) {
  return at::from_blob(memory, {elements}, at::TensorOptions().dtype(type));
}

void add_into(at::Tensor& to, const at::Tensor& from) {
  if (to.is_cuda() || to.scalar_type() == from.scalar_type()) {
    to.add_(from);
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, to.scalar_type(), "add_into",
                                  [&] { add_cpu<scalar_t>(to, from); });
}

void add_squares(const at::Tensor& values, at::Tensor& part, at::Tensor& sum) {
  at::Tensor norm = part.view(at::IntArrayRef{});
  at::linalg_vector_norm_out(norm, values, 2, {}, false, at::kFloat);
  sum.addcmul_(part, part);
}

double sum_of_squares(const at::Tensor& values) {
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, values.scalar_type(), "sum_of_squares",
                                  [&] { sum = sum_of_squares_cpu(values.const_data_ptr<scalar_t>(), values.numel()); });
  return sum;
}

}  // namespace vramfit
