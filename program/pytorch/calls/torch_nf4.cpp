// Matrices in 4 bits as torchao 0.15 computes with them (torchao/dtypes/nf4tensor.py): by calls of PyTorch's own.
#include <utility>

#include <fmt/format.h>

#include "base/conflict.h"
#include "program/pytorch/calls/nf4.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kBlock = 64, kScaledTogether = 256 * kBlock;  // to_nf4's defaults
constexpr Dtype kOriginal = Dtype::bf16;

}  // namespace

Nf4Scales nf4_scales(std::string_view name, std::int64_t elements) {
  if (elements % kScaledTogether != 0) {
    throw LibraryFails(fmt::format("--method qlora with {} of {} numbers (torchao's NF4 takes multiples of {})", name,
                                   elements, kScaledTogether));
  }
  return {elements / kBlock, (elements / kScaledTogether * dtype_bytes(kOriginal)).n};
}

/// dtypes/nf4tensor.py: nf4_split, for which all ranks have as many rows, and as many scales of each kind.
Nf4Scales nf4_scales_of_rank(const Parameter& matrix, std::int64_t ranks) {
  const std::int64_t elements = element_count(matrix);
  Nf4Scales bytes = nf4_scales(matrix.name, elements);
  if (matrix.shape.front() % ranks != 0 || elements / kScaledTogether % ranks != 0) {
    throw LibraryFails(
        fmt::format("--method qlora with {} on {} GPUs (torchao's NF4 is split into as many rows, and "
                    "parts of {} numbers, on each)",
                    matrix.name, ranks, kScaledTogether));
  }
  for (std::int64_t& each : bytes) each /= ranks;
  return bytes;
}

std::vector<Tensor> make_nf4(Torch& torch, int parameter, std::int64_t elements, std::string_view name) {
  std::vector<Tensor> tensors = make_nf4_scales(torch, nf4_scales(name, elements), name);
  tensors.push_back(torch.heap().make(elements / 2, Dtype::u8, Category::parameters, name));
  torch.heap().run("nf4::from_tensor", {writes(tensors.back())});
  torch.set_parameter(parameter, tensors.back(), false);
  return tensors;
}

std::vector<Tensor> make_nf4_scales(Torch& torch, const Nf4Scales& bytes, std::string_view name) {
  std::vector<Tensor> tensors;
  const auto add = [&](std::int64_t count, Dtype dtype, const char* what) {
    tensors.push_back(torch.heap().make(count, dtype, Category::parameters, fmt::format("{}{}", name, what)));
    torch.heap().run("nf4::from_tensor", {writes(tensors.back())});
  };
  constexpr std::int64_t kCodes = 16;
  add(kCodes, kOriginal, ": codes");
  add(bytes.front(), Dtype::u8, ": scales");
  add(bytes.back(), Dtype::u8, ": scales of scales");
  add(1, kOriginal, ": mean of scales");
  return tensors;
}

/// NF4Tensor.get_original_weight, of whose numbers the first and the second of each byte are computed apart. Places in
/// its table are int64, so that it takes several times what it makes.
Tensor Torch::original_of_nf4(int parameter, std::int64_t elements, Dtype dtype) {
  const std::int64_t half = elements / 2, blocks = elements / kBlock;
  const program::Access codes = reads_parameter(parameter);
  const auto places = [&] {
    const Tensor nibbles = computed("aten::bitwise_and", {codes}, temporary(half, Dtype::u8, "codes of half"));
    return computed("aten::_to_copy", {reads(nibbles)}, temporary(half, Dtype::i64, "places of half"));
  };
  const Tensor first_places = places(), second_places = places();
  const auto looked_up = [&](const Tensor& at) {
    return computed("aten::index", {reads(at)}, temporary(half, dtype, "codes' numbers"));
  };
  const Tensor first_numbers = looked_up(first_places), second_numbers = looked_up(second_places);
  Tensor scales;
  {
    const Tensor divided = computed("aten::div", {codes}, temporary(blocks, dtype, "scales"));
    scales = computed("aten::add", {reads(divided)}, temporary(blocks, dtype, "scales, shifted"));
  }
  const auto scaled = [&](const Tensor& numbers) {
    const Tensor repeated = computed("aten::clone", {reads(scales)}, temporary(half, dtype, "scales, repeated"));
    return computed("aten::mul", {reads(numbers), reads(repeated)}, temporary(half, dtype, "numbers of half"));
  };
  const Tensor first = scaled(first_numbers), second = scaled(second_numbers);
  return computed("aten::stack", {reads(first), reads(second)}, temporary(elements, dtype, "weight, dequantized"));
}

/// LinearNF4, which saves its weight when its forward is done.
Tensor Torch::linear_nf4(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs) {
  const std::int64_t rows = x.elements / inputs, elements = checked_mul(inputs, outputs);
  const Dtype dtype = x.dtype;
  Tensor y;
  {
    const Tensor weight = original_of_nf4(parameter, elements, dtype);
    y = product({reads(x), reads(weight)}, {rows, outputs, inputs}, dtype, false);
  }
  const bool is_seen = x.wants_gradient && checkpoints_.hook != nullptr;
  std::vector<Saved> saved{save({}, is_seen)};
  return record(std::move(y), {edge_to(x)}, std::move(saved), [=, this](Tensor& g, const std::vector<Tensor>&) {
    const Tensor weight = original_of_nf4(parameter, elements, dtype);
    Tensor gradient = value(checked_mul(rows, inputs), dtype, "input gradient");
    ensure_workspace();
    return std::vector<Tensor>{multiplied({reads(g), reads(weight)}, {rows, inputs, outputs}, std::move(gradient))};
  });
}

}  // namespace vramfit::eager
