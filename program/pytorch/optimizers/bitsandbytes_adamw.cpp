// bitsandbytes 0.50.2's AdamW with averages of 8 bits or in managed memory (bitsandbytes/optim/optimizer.py,
// Optimizer2State), with those of embeddings in 32 bits as transformers 5.23 wants them (trainer.py, create_optimizer).
#include <algorithm>
#include <string>

#include "base/text/units.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kBlock = 256, kCodes = 256, kLeastQuantized = 4096;
constexpr std::int64_t kLeastPaged = 100'000;  // get_state_buffer: what is smaller stays in the allocator

struct Form {
  bool has_8bit = false, is_paged = false;

  bool quantizes(const Trained& p) const { return has_8bit && !p.keeps_wide_states && p.elements >= kLeastQuantized; }
};

class Bitsandbytes {
 public:
  Bitsandbytes(Heap& heap, Wrapper& wrapper, Form form)
      : heap_(heap),
        wrapper_(wrapper),
        form_(form),
        has_codes_(std::ranges::any_of(wrapper.updated(), [](const Trained* p) { return !p->scales.empty(); })) {}

  void update(Trained& p) {
    if (p.exp_avg.elements == 0) make_states(p);
    Accesses accesses{changes(p.value), reads(wrapper_.gradient_of(p)), changes(p.exp_avg), changes(p.exp_avg_sq)};
    for (const Tensor& scales : p.scales) accesses.push_back(changes(scales));
    heap_.run(
        form_.quantizes(p) ? "bitsandbytes::optimizer_update_8bit_blockwise" : "bitsandbytes::optimizer_update_32bit",
        accesses);
  }

 private:
  Tensor average(const Trained& p, const char* what) {
    const Dtype dtype = form_.quantizes(p) ? Dtype::u8 : Dtype::f32;
    if (!form_.is_paged || p.elements < kLeastPaged) return make_state(heap_, p, p.elements, dtype, what);
    Tensor made = heap_.make_managed(p.elements, dtype, Category::optimizer_state, what + (" of " + p.name));
    heap_.run("bitsandbytes::fill", {writes(made)});
    return made;
  }

  void make_states(Trained& p) {
    const auto add = [&](std::int64_t numbers, const char* what) {
      p.scales.push_back(make_state(heap_, p, numbers, Dtype::f32, what));
    };
    const bool is_quantized = form_.quantizes(p);
    if (is_quantized && !has_codes_) {  // tables, which the first averages of 8 bits bring
      for (const char* const what : {"signed codes", "unsigned codes"}) add(kCodes, what);
      has_codes_ = true;
    }
    p.exp_avg = average(p, "exp_avg");
    p.exp_avg_sq = average(p, "exp_avg_sq");
    if (!is_quantized) return;
    for (const char* const what : {"exp_avg scales", "exp_avg_sq scales"}) add(ceil_div(p.elements, kBlock), what);
  }

  Heap& heap_;
  Wrapper& wrapper_;
  Form form_;
  bool has_codes_;
};

void step(Torch& torch, Wrapper& wrapper, Form form) {
  const Scope scope(torch.heap(), "adamw");
  Bitsandbytes optimizer(torch.heap(), wrapper, form);
  for (const OptimizerGroup& group : wrapper.groups()) {
    for (Trained* const p : group.parameters) optimizer.update(*p);
  }
}

}  // namespace

void adamw_8bit_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype /*state*/) {
  if (implementation == OptimizerImplementation::torchao) return torchao_adamw_step(torch, wrapper, 8);
  step(torch, wrapper, {.has_8bit = true, .is_paged = implementation == OptimizerImplementation::paged});
}

void paged_adamw_step(Torch& torch, Wrapper& wrapper) { step(torch, wrapper, {.has_8bit = false, .is_paged = true}); }

}  // namespace vramfit::eager
