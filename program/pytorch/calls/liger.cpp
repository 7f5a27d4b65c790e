#include "program/pytorch/calls/liger.h"

#include <utility>

#include "job/cluster/reduce_scratch.h"

namespace vramfit::eager {

namespace {

Tensor as_view(Tensor x) {
  x.is_view = true;
  return x;
}

}  // namespace

/// x.contiguous()
Tensor Liger::in_order(const Tensor& x, bool lies_apart, const char* what) const {
  return lies_apart ? torch_.computed("aten::clone", {reads(x)}, torch_.make_like(x, what)) : x;
}

/// What each multiprocessor has summed for its rows (rms_norm.py: rms_norm_backward).
Tensor Liger::sum_of_parts(const Tensor& parts, std::int64_t width, Dtype dtype) const {
  Tensor sum = torch_.heap_.make(width, Dtype::f32, dtype == Dtype::f32 ? Category::gradients : Category::temporaries,
                                 "weight gradient in fp32");
  const ReduceScratch scratch = sum_over_rows(parts.elements / width, width, torch_.device_, dtype_bytes(Dtype::f32).n);
  const Tensor partials = torch_.temporary(scratch.partials.n, Dtype::u8, "partial sums");
  const Tensor counters = torch_.temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  torch_.heap_.run("aten::sum", {reads(parts), writes(sum)});
  if (dtype == Dtype::f32) return sum;
  return torch_.computed("aten::_to_copy", {reads(sum)},
                         torch_.heap_.make(width, dtype, Category::gradients, "weight gradient"));
}

/// LigerRMSNormFunction, which keeps x in its own type.
Tensor Liger::rms_norm(const Tensor& given, const Norm& by) const {
  const Tensor x = in_order(given, by.input_lies_apart, "heads, in order");
  const bool weight_wants = torch_.is_trained(by.weight), wants = x.wants_gradient || weight_wants;
  Tensor y = torch_.make_like(x, "rms_norm");
  const Tensor rstd = torch_.value(x.elements / by.width, Dtype::f32, "rstd");
  torch_.heap_.run("liger::rms_norm", {reads(x), torch_.reads_parameter(by.weight), writes(y), writes(rstd)});
  std::vector<Saved> saved{torch_.save(x, wants)};
  saved.push_back(torch_.hooks_ == nullptr ? torch_.save({}, wants) : torch_.save_hooked(by.weight, wants));
  saved.push_back(torch_.save(rstd, wants));
  const Dtype dtype = torch_.parameters_.at(static_cast<std::size_t>(by.weight)).dtype;
  return torch_.record(std::move(y), {torch_.edge_to(given), torch_.edge_to(by.weight, by.width)}, std::move(saved),
                       [=, *this](Tensor& g, const std::vector<Tensor>& kept) {
                         const Tensor dy = in_order(g, by.gradient_lies_apart, "gradient of heads, in order");
                         const std::int64_t sums = weight_wants ? checked_mul(torch_.device_.sm_count, by.width) : 0;
                         const Tensor parts =
                             torch_.temporary(sums, Dtype::f32, "weight gradient of each multiprocessor");
                         Tensor dx = by.in_place ? dy : torch_.make_like(g, "rms_norm gradient");
                         Accesses accesses{reads(kept[0]), torch_.reads_hooked(kept[1], by.weight), reads(kept[2])};
                         if (!by.in_place) accesses.push_back(reads(dy));
                         accesses.push_back(by.in_place ? changes(dx) : writes(dx));
                         if (weight_wants) accesses.push_back(writes(parts));
                         torch_.heap_.run("liger::rms_norm_backward", accesses);
                         std::vector<Tensor> gradients{as_view(std::move(dx)), {}};
                         if (weight_wants) gradients[1] = sum_of_parts(parts, by.width, dtype);
                         return gradients;
                       });
}

/// LigerRopeFunction, one node for both, in place but where they or their gradients lie apart.
std::array<Tensor, 2> Liger::rotated(const Tensor& q, const Tensor& k, const Tables& tables,
                                     const Copies& copies) const {
  Tensor first = as_view(in_order(q, copies.queries, "queries, in order"));
  Tensor second = as_view(in_order(k, copies.keys, "keys, in order"));
  torch_.heap_.run("liger::rope", {reads(tables.cosines), reads(tables.sines), changes(first), changes(second)});
  const bool wants = q.wants_gradient || k.wants_gradient;
  std::vector<Saved> saved{torch_.save(tables.cosines, wants), torch_.save(tables.sines, wants)};
  first = torch_.record(
      std::move(first), {torch_.edge_to(q), torch_.edge_to(k)}, std::move(saved),
      [=, *this](Tensor& g, const std::vector<Tensor>& kept) {
        Tensor dq = in_order(g, copies.of_queries, "gradient of queries, in order");
        Tensor dk = in_order(kept[2], copies.of_keys, "gradient of keys, in order");
        torch_.heap_.run("liger::rope_backward", {reads(kept[0]), reads(kept[1]), changes(dq), changes(dk)});
        return std::vector<Tensor>{as_view(std::move(dq)), as_view(std::move(dk))};
      });
  if (first.made_by != nullptr) first.made_by->further.resize(1);
  second.made_by = first.made_by;
  second.output = 1;
  second.wants_gradient = first.wants_gradient;
  return {std::move(first), std::move(second)};
}

/// LigerSiLUMulFunction and LigerGELUMulFunction, which compute the activation again in backward.
Tensor Liger::gated(const Tensor& gate, const Tensor& up, bool lie_apart) const {
  const Tensor a = in_order(gate, lie_apart, "gate, in order"), b = in_order(up, lie_apart, "up, in order");
  Tensor y = torch_.computed("liger::gated", {reads(a), reads(b)}, torch_.make_like(a, "gated"));
  const bool wants = gate.wants_gradient || up.wants_gradient;
  std::vector<Saved> saved{torch_.save(a, wants), torch_.save(b, wants)};
  return torch_.record(std::move(y), {torch_.edge_to(gate), torch_.edge_to(up)}, std::move(saved),
                       [*this](Tensor& g, const std::vector<Tensor>& kept) {
                         torch_.heap_.run("liger::gated_backward", {reads(g), changes(kept[0]), changes(kept[1])});
                         return std::vector<Tensor>{as_view(kept[0]), as_view(kept[1])};
                       });
}

}  // namespace vramfit::eager
