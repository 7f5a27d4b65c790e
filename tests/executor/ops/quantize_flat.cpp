// Quantizes a matrix and makes it whole again, for comparisons with other libraries:
//   quantize_flat FORMAT DTYPE DEVICE ROWS COLUMNS RANKS IN OUT
// IN: fp32. Of ranks that share the rows one after the other, OUT has what each stores, its rows as DTYPE (widened to
// fp32), and before all of it the number of bytes that each stores (int64). DEVICE cuda: the functions for GPUs, on
// the host's tensors.
//   quantize_flat time FORMAT DTYPE ELEMENTS: seconds that making as many elements whole takes, and copying what is
// made, the best of several by turns.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text/units.h"
#include "executor/ops/quantized_torch.h"

namespace vramfit {
namespace {

at::ScalarType type_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  return name == "fp16" ? at::kHalf : at::kFloat;
}

struct Request {
  const Quantization& format;
  at::ScalarType type;
  bool by_calls;
  std::int64_t rows, columns, ranks;
};

struct Rank {
  QuantizedRows matrix;
  at::Tensor stored;
};

std::vector<Rank> quantized(const Request& request, const at::Tensor& values) {
  std::vector<Rank> ranks;
  std::vector<RowsQuantizer> quantizers;
  const std::int64_t capacity = ceil_div(request.rows, request.ranks);
  double sum = 0;
  std::int64_t scales = 0;
  for (std::int64_t first = 0; first < capacity * request.ranks; first += capacity) {
    const std::int64_t own = std::clamp<std::int64_t>(request.rows - first, 0, capacity);
    ranks.push_back({{.format = request.format, .capacity = capacity, .rows = own, .row_elements = request.columns},
                     at::zeros({quantized_bytes(request.format, capacity, request.columns).n}, at::kByte)});
    const Rank& rank = ranks.back();
    quantizers.emplace_back(rank.matrix, std::span(rank.stored.mutable_data_ptr<std::uint8_t>(), rank.stored.nbytes()));
    quantizers.back().add(
        {values.const_data_ptr<float>() + first * request.columns, static_cast<std::size_t>(rank.matrix.elements())});
    sum += quantizers.back().sum_of_scales();
    scales += scales_of(request.format, rank.matrix.elements(), request.columns);
  }
  for (RowsQuantizer& quantizer : quantizers) quantizer.finish(static_cast<float>(sum / static_cast<double>(scales)));
  return ranks;
}

at::Tensor whole(const Request& request, const Rank& rank) {
  at::Tensor into = at::empty({rank.matrix.capacity * request.columns}, request.type);
  if (request.by_calls) {
    const DequantizeScratch scratch(request.format, rank.matrix.capacity, request.columns);
    dequantize_by_calls(rank.matrix, rank.stored, into, at::empty({scratch.end}, at::kFloat));
  } else {
    dequantize_on_cpu(rank.matrix, rank.stored, into);
  }
  return into.narrow(0, 0, rank.matrix.elements()).to(at::kFloat);
}

void write(std::ofstream& out, const at::Tensor& tensor) {
  out.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
}

void round_trip(const Request& request, const std::string& from, const std::string& to) {
  at::Tensor values = at::empty({request.rows * request.columns}, at::kFloat);
  std::ifstream in(from, std::ios::binary);
  in.read(static_cast<char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  if (!in) throw std::runtime_error("too few numbers");
  const std::vector<Rank> ranks = quantized(request, values);
  std::ofstream out(to, std::ios::binary);
  write(out, at::full({1}, ranks.front().stored.numel(), at::kLong));
  for (const Rank& rank : ranks) {
    write(out, rank.stored);
    write(out, whole(request, rank));
  }
}

template <typename F>
double seconds(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void time(const Quantization& format, at::ScalarType type, std::int64_t elements) {
  constexpr std::int64_t kColumns = 4096;
  constexpr int kRounds = 25;
  const Request request{format, type, false, elements / kColumns, kColumns, 1};
  const std::vector<Rank> ranks = quantized(request, at::randn({request.rows * kColumns}));
  at::Tensor into = at::zeros({request.rows * kColumns}, type), copy = at::zeros_like(into);
  double best = std::numeric_limits<double>::infinity(), copying = best;
  for (int round = 0; round < kRounds; ++round) {
    best = std::min(best, seconds([&] { dequantize_on_cpu(ranks.front().matrix, ranks.front().stored, into); }));
    copying = std::min(copying, seconds([&] { copy.copy_(into); }));
  }
  fmt::print("{} {}\n", best, copying);
}

}  // namespace
}  // namespace vramfit

int main(int argc, char** argv) try {
  using namespace vramfit;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto format = [](const std::string& name) -> const Quantization& {
    const Quantization* row = quantization_named(name);
    if (row == nullptr) throw std::runtime_error("no format " + name);
    return *row;
  };
  if (words.size() == 4 && words[0] == "time") {
    time(format(words[1]), type_of(words[2]), std::stoll(words[3]));
    return 0;
  }
  if (words.size() != 8) throw std::runtime_error("quantize_flat FORMAT DTYPE DEVICE ROWS COLUMNS RANKS IN OUT");
  round_trip({format(words[0]), type_of(words[1]), words[2] == "cuda", std::stoll(words[3]), std::stoll(words[4]),
              std::stoll(words[5])},
             words[6], words[7]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
