// bitsandbytes 0.50.2's AdamW with 8 bits (bitsandbytes/optim/optimizer.py, Optimizer2State), with embeddings in 32 as
// transformers 5.23 wants them (trainer.py, create_optimizer).
#include <algorithm>
#include <array>

#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kBlock = 256, kCodes = 256, kLeastQuantized = 4096;

bool is_quantized(const Trained& p) { return !p.is_embedding && p.elements >= kLeastQuantized; }

/// The tables of codes are made with the first averages that need them.
void make_states(Heap& heap, Trained& p, bool has_codes) {
  const auto make = [&](std::int64_t elements, Dtype dtype, const char* what) {
    Tensor made = heap.make(elements, dtype, Category::optimizer_state, what + (" of " + p.name));
    heap.run("aten::zeros_like", {writes(made)});
    return made;
  };
  const Dtype dtype = is_quantized(p) ? Dtype::u8 : Dtype::f32;
  if (is_quantized(p) && !has_codes) {
    p.scales = {make(kCodes, Dtype::f32, "signed codes"), make(kCodes, Dtype::f32, "unsigned codes")};
  }
  p.exp_avg = make(p.elements, dtype, "exp_avg");
  p.exp_avg_sq = make(p.elements, dtype, "exp_avg_sq");
  if (!is_quantized(p)) return;
  const std::int64_t blocks = (p.elements + kBlock - 1) / kBlock;
  for (const char* const what : {"exp_avg scales", "exp_avg_sq scales"}) {
    p.scales.push_back(make(blocks, Dtype::f32, what));
  }
}

}  // namespace

void adamw_8bit_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation /*implementation*/, Dtype /*state*/) {
  Heap& heap = torch.heap();
  const Scope scope(heap, "adamw");
  const std::vector<Trained*> all = wrapper.trained();
  for (const OptimizerGroup& group : wrapper.groups()) {
    for (Trained* const p : group.parameters) {
      if (p->exp_avg.elements == 0) {
        const bool has_codes = std::ranges::any_of(all, [](const Trained* other) { return !other->scales.empty(); });
        make_states(heap, *p, has_codes);
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
