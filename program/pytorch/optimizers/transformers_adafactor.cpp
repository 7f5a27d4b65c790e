// transformers 5.23's Adafactor (optimization.py), as its Trainer makes it (optim="adafactor": scale_parameter and
// relative_step off, no first moment). States are in fp32 whatever the parameters are; a parameter of 16 bits and its
// gradient are converted in each step.
#include <string>
#include <utility>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kMostColumns = 1 << 17;  // from here on, rows are summed up with scratch

class Adafactor {
 public:
  Adafactor(Torch& torch, Wrapper& wrapper) : heap_(torch.heap()), device_(torch.device()), wrapper_(wrapper) {}

  void update(Trained& p) {
    const bool is_large = indexed_parts(p.elements, kFp32).size() > 1;
    if (p.columns > 0 && (is_large || p.columns >= kMostColumns)) {
      throw NotModelled("--optimizer adafactor of a matrix of 2 GiB or more in fp32, or of 131072 columns");
    }
    gradient_ = {};
    gradient_ = in_fp32(wrapper_.gradient_of(p), p.elements, "gradient in fp32");
    if (p.exp_avg_sq.elements == 0) make_states(p);
    value_ = {};
    value_ = in_fp32(p.value, p.elements, "parameter in fp32");
    {
      // What was there is let go of then; as it has the same size, it stays, and the new one goes.
      const Tensor size = root_mean_square(value_, p.elements, Category::optimizer_state, "RMS of " + p.name);
      if (!p.step.storage) p.step = size;
    }
    square_gradient(p.elements);
    if (p.columns > 0) {
      estimate_from_rows_and_columns(p);
    } else {
      move_average(p.exp_avg_sq, update_);
      Tensor root = make(p.elements, "update");
      heap_.run("aten::rsqrt", {reads(p.exp_avg_sq), writes(root)});
      update_ = std::move(root);
    }
    run_with_gradient("aten::mul_", changes(update_), p.elements);
    clip(p.elements);
    heap_.run("aten::mul_", {changes(update_)});
    {
      const Tensor negative = make(p.elements, "negative update");
      heap_.run("aten::neg", {reads(update_), writes(negative)});
      heap_.run("aten::add_", {reads(negative), changes(value_)});
    }
    if (p.value.dtype != Dtype::f32) heap_.run("aten::copy_", {reads(value_), writes(p.value)});
  }

 private:
  Tensor make(std::int64_t elements, const char* what) {
    return heap_.make(elements, Dtype::f32, Category::temporaries, what);
  }

  /// x, or its copy; x may lie in a larger buffer.
  Tensor in_fp32(const Tensor& x, std::int64_t elements, const char* what) {
    if (x.dtype == Dtype::f32) return x;
    Tensor copy = make(elements, what);
    heap_.run("aten::_to_copy", {reads(x), writes(copy)}, {.bytes = static_cast<double>(elements) * (kFp32 + 2)});
    return copy;
  }

  /// A call that goes over the gradient, which may lie in a larger buffer, and over one tensor more.
  void run_with_gradient(const char* name, const program::Access& other, std::int64_t elements) {
    const double moved = heap_.bytes_of({other}) + static_cast<double>(elements * kFp32);
    heap_.run(name, {reads(gradient_), other}, {.bytes = moved});
  }

  void make_states(Trained& p) {
    if (p.columns == 0) {
      p.exp_avg_sq = make_state(heap_, p, p.elements, Dtype::f32, "exp_avg_sq");
      return;
    }
    p.exp_avg = make_state(heap_, p, p.elements / p.columns, Dtype::f32, "exp_avg_sq_row");
    p.exp_avg_sq = make_state(heap_, p, p.columns, Dtype::f32, "exp_avg_sq_col");
  }

  void reduce(const char* name, const Accesses& accesses, const ReduceScratch& scratch) {
    const Tensor partials = heap_.make(scratch.partials.n, Dtype::u8, Category::temporaries, "partial sums");
    const Tensor counters = heap_.make(scratch.counters.n, Dtype::u8, Category::temporaries, "reduction counters");
    heap_.run(name, accesses);
  }

  /// A reduction of x: its result lives from before the scratch on.
  Tensor reduced(const char* name, const Tensor& x, Tensor result, const ReduceScratch& scratch) {
    reduce(name, {reads(x), writes(result)}, scratch);
    return result;
  }

  /// x.norm(2) / sqrt(elements)
  Tensor root_mean_square(const Tensor& x, std::int64_t elements, Category category, const std::string& what) {
    const Tensor norm = make(1, "norm");
    std::int64_t begin = 0;
    for (const std::int64_t part : indexed_parts(elements, kFp32)) {
      const ReduceScratch scratch = sum_over_all(part, device_);
      const Tensor read = part == elements ? x : heap_.narrow(x, begin, part);
      reduce("aten::linalg_vector_norm", {reads(read), begin == 0 ? writes(norm) : changes(norm)}, scratch);
      begin += part;
    }
    Tensor mean = heap_.make(1, Dtype::f32, category, what);
    heap_.run("aten::div", {reads(norm), writes(mean)});
    return mean;
  }

  /// update = gradient ** 2 + epsilon
  void square_gradient(std::int64_t elements) {
    const Tensor squares = make(elements, "squares");
    run_with_gradient("aten::pow", writes(squares), elements);
    Tensor sum = make(elements, "update");
    heap_.run("aten::add", {reads(squares), writes(sum)});
    update_ = std::move(sum);
  }

  void move_average(Tensor& average, const Tensor& mean) {
    heap_.run("aten::mul_", {changes(average)});
    heap_.run("aten::add_", {reads(mean), changes(average)});
  }

  void estimate_from_rows_and_columns(Trained& p) {
    const std::int64_t rows = p.elements / p.columns;
    move_average(p.exp_avg, reduced("aten::mean", update_, make(rows, "means of rows"), {}));
    move_average(p.exp_avg_sq, reduced("aten::mean", update_, make(p.columns, "means of columns"),
                                       sum_over_rows(rows, p.columns, device_, kFp32)));
    Tensor of_rows;
    {
      const Tensor mean = reduced("aten::mean", p.exp_avg, make(1, "mean of means"), sum_over_all(rows, device_));
      of_rows = make(rows, "factors of rows");
      heap_.run("aten::div", {reads(p.exp_avg), reads(mean), writes(of_rows)});
    }
    heap_.run("aten::rsqrt_", {changes(of_rows)});
    Tensor of_columns = make(p.columns, "factors of columns");
    heap_.run("aten::rsqrt", {reads(p.exp_avg_sq), writes(of_columns)});
    Tensor product = make(p.elements, "update");
    heap_.run("aten::mul", {reads(of_rows), reads(of_columns), writes(product)});
    update_ = std::move(product);
  }

  /// Divides the update by its root mean square, where that is more than 1.
  void clip(std::int64_t elements) {
    Tensor factor;
    {
      const Tensor mean = root_mean_square(update_, elements, Category::temporaries, "RMS of the update");
      factor = make(1, "clipping factor");
      heap_.run("aten::div", {reads(mean), writes(factor)});
    }
    heap_.run("aten::clamp_", {changes(factor)});
    heap_.run("aten::div_", {reads(factor), changes(update_)});
  }

  Heap& heap_;
  const Device& device_;
  Wrapper& wrapper_;
  // What the names of the library's loop hold until the next parameter takes its place.
  Tensor gradient_, value_, update_;
};

}  // namespace

void transformers_adafactor_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation /*implementation*/,
                                 Dtype /*state*/) {
  const Scope scope(torch.heap(), "adafactor");
  Adafactor optimizer(torch, wrapper);
  for (const OptimizerGroup& group : wrapper.groups()) {
    for (Trained* const p : group.parameters) optimizer.update(*p);
  }
}

}  // namespace vramfit::eager
