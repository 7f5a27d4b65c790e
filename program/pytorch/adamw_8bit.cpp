// bitsandbytes 0.50.2's AdamW with 8 bits (bitsandbytes/optim/optimizer.py, Optimizer2State), with embeddings in 32 as
// transformers 5.23 wants them (trainer.py, create_optimizer).
#include <algorithm>

#include "base/units.h"
#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kBlock = 256, kCodes = 256, kLeastQuantized = 4096;

bool is_quantized(const Trained& p) { return !p.is_embedding && p.elements >= kLeastQuantized; }

/// `has_codes`: whether the tables of codes are there, which the first averages in 8 bits bring.
void make_states(Heap& heap, Trained& p, bool has_codes) {
  const auto add = [&](std::int64_t numbers, const char* what) {
    p.scales.push_back(make_state(heap, p, numbers, Dtype::f32, what));
  };
  if (is_quantized(p) && !has_codes) {
    for (const char* const what : {"signed codes", "unsigned codes"}) add(kCodes, what);
  }
  const Dtype dtype = is_quantized(p) ? Dtype::u8 : Dtype::f32;
  p.exp_avg = make_state(heap, p, p.elements, dtype, "exp_avg");
  p.exp_avg_sq = make_state(heap, p, p.elements, dtype, "exp_avg_sq");
  if (!is_quantized(p)) return;
  for (const char* const what : {"exp_avg scales", "exp_avg_sq scales"}) add(ceil_div(p.elements, kBlock), what);
}

}  // namespace

void adamw_8bit_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation /*implementation*/, Dtype /*state*/) {
  Heap& heap = torch.heap();
  const Scope scope(heap, "adamw");
  bool has_codes = std::ranges::any_of(wrapper.trained(), [](const Trained* p) { return !p->scales.empty(); });
  for (const OptimizerGroup& group : wrapper.groups()) {
    for (Trained* const p : group.parameters) {
      if (p->exp_avg.elements == 0) {
        make_states(heap, *p, has_codes);
        has_codes = has_codes || is_quantized(*p);
      }
      Accesses accesses{changes(p->value), reads(wrapper.gradient_of(*p)), changes(p->exp_avg), changes(p->exp_avg_sq)};
      for (const Tensor& scales : p->scales) accesses.push_back(changes(scales));
      heap.run(
          is_quantized(*p) ? "bitsandbytes::optimizer_update_8bit_blockwise" : "bitsandbytes::optimizer_update_32bit",
          accesses);
    }
  }
}

}  // namespace vramfit::eager
