#include "program/pytorch/compiled/fp8_products.h"

#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace vramfit::eager {

namespace {

using program::Access;
using program::Program;
using program::Run;

constexpr std::int64_t kMultiple = 16;  // of which _scaled_mm wants all dimensions

/// Of each element of a factor in 16 bits, read and written by torchao's calls (pytorch/ao@36027d82, torchao/float8/
/// float8_utils.py and float8_training_tensor.py): abs, max; to fp32, times the scale, clamp, to FP8.
constexpr double kEagerMaximumBytes = (2 + 2) + 2, kEagerCastBytes = (2 + 4) + (4 + 4) + (4 + 4) + (4 + 1);
/// Beside the first two, the scale takes as many of one number each: to fp64, clamp, divide, to fp32.
constexpr std::int64_t kEagerMaximumCalls = 2 + 4, kEagerCastCalls = 4;
/// Compiled, as torchao reckons (testing/training/roofline_utils.py): a pass for the largest number, one that casts,
/// and a further byte where that writes the factor in a second layout.
constexpr double kMaximumBytes = 2, kCastBytes = 2 + 1, kLayoutBytes = 1;

enum class Kind { forward, input_gradient, weight_gradient };

struct Product {
  Kind kind = Kind::forward;
  int left = -1, right = -1;  // buffers of the factors
  WorkShape shape;
  double left_elements() const { return static_cast<double>(shape.rows) * static_cast<double>(shape.inner); }
  double right_elements() const { return static_cast<double>(shape.inner) * static_cast<double>(shape.columns); }
};

bool has_fp8_shape(const WorkShape& shape) {
  return shape.rows % kMultiple == 0 && shape.columns % kMultiple == 0 && shape.inner % kMultiple == 0;
}

class Fp8Products {
 public:
  Fp8Products(Program& program, const Fp8Casting& casting) : program_(program), casting_(casting) {}

  void change() {
    for (program::Instruction& instruction : program_.main.instructions) {
      if (const auto* mark = std::get_if<program::Mark>(&instruction)) in_backward_ = mark->phase == Phase::backward;
      if (const auto* allocate = std::get_if<program::Allocate>(&instruction)) casts_.erase(allocate->buffer);
      auto* const run = std::get_if<Run>(&instruction);
      if (run == nullptr) continue;
      if (const std::optional<Product> product = product_of(*run)) change(*run, *product);
    }
  }

 private:
  /// Its layouts: contiguous along the dimension that a product of each kind sums over.
  struct Casts {
    std::array<bool, 3> has{};
    bool has_any() const { return has[0] || has[1] || has[2]; }
  };

  /// A product of a layer (torchtitan leaves the output head in bf16; its blocks are "layers.N"), told by its labels.
  std::optional<Product> product_of(const Run& run) const {
    if (run.work.count != 1 || run.accesses.count < 3) return std::nullopt;
    const Work& work = program_.main.work[run.work.first];
    if (work.unit != Work::Unit::product || !has_fp8_shape(work.shape)) return std::nullopt;
    const Access& left = program_.main.accesses[run.accesses.first];
    const Access& right = program_.main.accesses[run.accesses.first + 1];
    const Access& made = program_.main.accesses[run.accesses.first + run.accesses.count - 1];
    const program::Buffer& output = program_.main.buffers[static_cast<std::size_t>(made.buffer)];
    if (output.label < 0) return std::nullopt;
    const std::string_view label = program_.labels[static_cast<std::size_t>(output.label)];
    if (!label.starts_with("layers.")) return std::nullopt;
    Kind kind = label.ends_with("input gradient") ? Kind::input_gradient : Kind::forward;
    if (output.category == Category::gradients) kind = Kind::weight_gradient;
    return Product{kind, left.buffer, right.buffer, work.shape};
  }

  void change(Run& run, const Product& product) {
    const Work work = program_.main.work[run.work.first];
    Work multiply = work;
    multiply.dtype = Dtype::f8_e4m3;
    multiply.bytes = product.left_elements() + product.right_elements() +
                     2 * static_cast<double>(work.shape.rows) * static_cast<double>(work.shape.columns);
    std::vector<Work>& all = program_.main.work;
    const std::size_t first = all.size();
    if (casting_.is_compiled) {
      all.push_back(compiled_casts(product));
    } else {
      const double elements = product.left_elements() + product.right_elements();
      all.push_back({.launches = 2 * kEagerMaximumCalls, .bytes = elements * kEagerMaximumBytes});
      all.push_back(
          {.unit = Work::Unit::eager_cast, .launches = 2 * kEagerCastCalls, .bytes = elements * kEagerCastBytes});
    }
    all.push_back(multiply);
    run.work = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(all.size() - first)};
  }

  /// Equal casts are made once: of the input of several linears, and of the output's gradient for both its products.
  Work compiled_casts(const Product& product) {
    Work work{.unit = Work::Unit::cast, .launches = 0};
    const bool is_backward_product = product.kind != Kind::forward;
    // What the gradient of an output has is new; the weights' largest numbers are known from forward.
    cast(product.left, product.left_elements(), product.kind, !is_backward_product && knows_inputs(), work);
    const bool is_weight = product.kind != Kind::weight_gradient;
    cast(product.right, product.right_elements(), product.kind, is_weight ? in_backward_ : knows_inputs(), work);
    return work;
  }
  bool knows_inputs() const { return in_backward_ && casting_.keeps_maxima; }

  void cast(int buffer, double elements, Kind kind, bool knows_maximum, Work& work) {
    Casts& casts = casts_[buffer];
    bool& has = casts.has.at(static_cast<std::size_t>(kind));
    if (has) return;
    if (casts.has_any()) {
      work.bytes += elements * kLayoutBytes;
    } else {
      work.bytes += elements * (kCastBytes + (knows_maximum ? 0 : kMaximumBytes));
      work.launches += knows_maximum ? 1 : 2;
    }
    has = true;
  }

  Program& program_;
  Fp8Casting casting_;
  bool in_backward_ = false;
  std::map<int, Casts> casts_;  // by buffer
};

}  // namespace

void use_fp8_products(Program& program, const Fp8Casting& casting) { Fp8Products(program, casting).change(); }

}  // namespace vramfit::eager
