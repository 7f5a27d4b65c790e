// torchao 0.18's AdamW with averages of 8 or 4 bits (torchao/optim/adam.py), as transformers 5.23's Trainer makes it:
// in blocks of 256 for both (trainer_optimizer.py). Each parameter is updated by one function that torch.compile made
// for its shape. What the function holds between its kernels is what Inductor of PyTorch 2.11 writes to memory, as
// rehearsed: the scales of the blocks, the averages divided by them, and the codes of 4 bits before two are one byte.
// Left out is how Inductor tunes kernels in the first update: it times those that it hasn't met on a machine, and a few
// in every run.
#include <cstdint>
#include <string>

#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kBlock = 256, kLeastQuantized = 4096;

/// The averages in a parameter's `scales`: of each, its blocks' scales and its table of codes.
constexpr std::size_t kScalesOfFirst = 0, kScalesOfSecond = 2;

class Torchao {
 public:
  Torchao(Torch& torch, Wrapper& wrapper, std::int64_t bits)
      : heap_(torch.heap()), device_(torch.device()), wrapper_(wrapper), bits_(bits) {}

  void update(Trained& p) {
    const bool is_first = p.exp_avg.elements == 0;
    if (is_first) make_states(p);
    if (is_first && !has_compiled_) look_at_device();
    const bool is_at_once = !is_quantized(p) || (bits_ == 8 && is_as_wide_as_block(p));
    if (is_at_once) return update_at_once(p);
    update_in_parts(p);
  }

 private:
  static bool is_quantized(const Trained& p) { return p.elements >= kLeastQuantized && p.elements % kBlock == 0; }
  /// Then Inductor divides averages where it has found the scale.
  static bool is_as_wide_as_block(const Trained& p) { return p.columns == kBlock; }
  /// Inductor takes the largest of a block in two parts where there are few blocks and neighbours don't follow each
  /// other in memory, as codes in half bytes don't (_inductor/ir.py: Reduction.num_splits).
  bool finds_scales_in_parts(std::int64_t blocks) const {
    constexpr std::int64_t kEnoughForSm = 64;
    return bits_ == 4 && blocks < kEnoughForSm * device_.sm_count;
  }

  Tensor make(std::int64_t elements, Dtype dtype, const char* what) {
    return heap_.make(elements, dtype, Category::temporaries, what);
  }

  Tensor average(Trained& p, const char* what) {
    if (!is_quantized(p)) return make_state(heap_, p, p.elements, p.value.dtype, what);
    Tensor codes = make_state(heap_, p, p.elements * bits_ / 8, Dtype::u8, what);
    p.scales.push_back(make_state(heap_, p, p.elements / kBlock, Dtype::f32, "scales"));
    p.scales.push_back(make_state(heap_, p, std::int64_t{1} << bits_, Dtype::f32, "table of codes"));
    return codes;
  }

  void make_states(Trained& p) {
    p.exp_avg = average(p, "exp_avg");
    p.exp_avg_sq = average(p, "exp_avg_sq");
  }

  /// What the compiler asks of the card, once.
  void look_at_device() {
    has_compiled_ = true;
    const Tensor number = make(1, Dtype::f32, "number");
    heap_.run("torch::compile", {writes(number)});
  }

  void update_at_once(Trained& p) {
    Accesses accesses{changes(p.value), reads(wrapper_.gradient_of(p)), changes(p.exp_avg), changes(p.exp_avg_sq)};
    for (const Tensor& scales : p.scales) accesses.push_back(changes(scales));
    heap_.run("torchao::single_param_adam", accesses);
  }

  /// What a kernel leaves for the next ones, of each average.
  struct Between {
    Tensor scales, scaled, codes;
  };

  void find_scales(const Trained& p, Between& first, Between& second) {
    const std::int64_t blocks = p.elements / kBlock;
    if (!finds_scales_in_parts(blocks)) {
      first.scales = make(blocks, Dtype::f32, "scales of exp_avg");
      second.scales = make(blocks, Dtype::f32, "scales of exp_avg_sq");
      return;
    }
    Tensor of_first = make(2 * blocks, Dtype::f32, "scales of half blocks");
    Tensor of_second = make(2 * blocks, Dtype::f32, "scales of half blocks");
    heap_.run("torchao::scale_tensor", {reads(wrapper_.gradient_of(p)), reads(p.exp_avg), reads(p.exp_avg_sq),
                                        writes(of_first), writes(of_second)});
    first.scales = make(blocks, Dtype::f32, "scales of exp_avg");
    heap_.run("aten::amax", {reads(of_first), writes(first.scales)});
    of_first = {};
    second.scales = make(blocks, Dtype::f32, "scales of exp_avg_sq");
    heap_.run("aten::amax", {reads(of_second), writes(second.scales)});
  }

  void update_in_parts(Trained& p) {
    const Tensor gradient = wrapper_.gradient_of(p);
    Between first, second;
    const bool keeps_scales = !is_as_wide_as_block(p) || finds_scales_in_parts(p.elements / kBlock);
    if (keeps_scales) find_scales(p, first, second);
    first.scaled = make(p.elements, Dtype::f32, "exp_avg in blocks");
    second.scaled = make(p.elements, Dtype::f32, "exp_avg_sq in blocks");
    const auto how = finds_scales_in_parts(p.elements / kBlock) ? reads : writes;
    heap_.run("torchao::scale_tensor", {reads(gradient), reads(p.exp_avg), reads(p.exp_avg_sq), how(first.scales),
                                        how(second.scales), writes(first.scaled), writes(second.scaled)});
    if (bits_ == 4) {
      first.codes = make(p.elements, Dtype::i64, "codes of exp_avg");
      second.codes = make(p.elements, Dtype::i64, "codes of exp_avg_sq");
    }
    const auto takes_codes = [&](const Tensor& codes, const Tensor& kept) {
      return codes.storage ? writes(codes) : changes(kept);
    };
    heap_.run("torchao::single_param_adam",
              {reads(gradient), reads(first.scaled), reads(second.scaled), changes(p.value),
               takes_codes(first.codes, p.exp_avg), takes_codes(second.codes, p.exp_avg_sq)});
    keep(first, p.exp_avg, p.scales[kScalesOfFirst]);
    keep(second, p.exp_avg_sq, p.scales[kScalesOfSecond]);
  }

  /// Copies an average's new codes, two to a byte, and its scales to where they stay.
  void keep(const Between& made, const Tensor& codes, const Tensor& scales) {
    if (made.codes.storage) heap_.run("torchao::pack", {reads(made.codes), writes(codes)});
    if (made.scales.storage) heap_.run("aten::copy_", {reads(made.scales), writes(scales)});
  }

  Heap& heap_;
  const Device& device_;
  Wrapper& wrapper_;
  std::int64_t bits_;
  bool has_compiled_ = false;
};

}  // namespace

void torchao_adamw_step(Torch& torch, Wrapper& wrapper, std::int64_t bits) {
  const Scope scope(torch.heap(), "adamw");
  Torchao optimizer(torch, wrapper, bits);
  for (const OptimizerGroup& group : wrapper.groups()) {
    for (Trained* const p : group.parameters) optimizer.update(*p);
  }
}

void adamw_4bit_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation /*implementation*/, Dtype /*state*/) {
  torchao_adamw_step(torch, wrapper, 4);
}

}  // namespace vramfit::eager
