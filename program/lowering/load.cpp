#include "program/lowering/load.h"

#include <string>

#include "job/parameters/quantization.h"
#include "program/ops/fp8.h"
#include "program/stages/load_rows.h"

namespace vramfit::program {

Bytes bytes_of_ids(const Shared& in) {
  return checked_mul(in.shape.batch, in.shape.sequence) * dtype_bytes(Dtype::i64);
}

void LoadLowering::load(bool sums_gradients) {
  in_.writer.write(Mark{});
  in_.host.load_codes(in_.layout);
  load_units();
  in_.host.load_staging(in_.layout, sums_gradients);
  load_masks();
  load_ropes();
  load_workspaces();
  load_numbers();
  load_host_numbers();
  made_.pinned = {pinned("inputs: ids, pinned", bytes_of_ids(in_), Dtype::i64),
                  pinned("inputs: labels, pinned", bytes_of_ids(in_), Dtype::i64)};
}

Held LoadLowering::workspace(std::string_view label, Bytes bytes, Dtype dtype) const {
  return in_.writer.allocate({.bytes = bytes,
                              .label = in_.labels.number(label),
                              .segment = -1,
                              .category = Category::workspace,
                              .dtype = dtype});
}

Held LoadLowering::pinned(const char* label, Bytes bytes, Dtype dtype) const {
  return in_.writer.allocate({.bytes = in_.is_cuda ? bytes : Bytes{0},
                              .label = in_.labels.number(label),
                              .segment = -1,
                              .category = Category::activations,
                              .dtype = dtype,
                              .space = Space::pinned});
}

void LoadLowering::load_units() const {
  const bool stages = in_.job.load == Load::rank0 && !in_.in.run.resumes && in_.in.coords == Coords{};
  const Quantization* format = quantization_named(in_.job.quantization);
  const bool sums_scales = format != nullptr && format->scale_block > 0 && in_.layout.shards > 1;
  constexpr Bytes kSum{8};  // in double
  const Bytes rows = stages ? load_staging(in_.layout) : Bytes{0};
  const Held staging =
      in_.writer.allocate({.bytes = sums_scales ? kSum : rows,
                           .label = in_.labels.number(sums_scales ? "load: sum of scales" : "load: rows of all ranks"),
                           .segment = -1,
                           .category = Category::communication});
  for (UnitLowering& unit : in_.units) unit.load(staging);
}

void LoadLowering::load_masks() {
  if (!std::holds_alternative<GradientMaskFile>(in_.job.gradient_mask)) return;
  for (std::size_t u = 0; u < in_.layout.units.size(); ++u) {
    const Unit& unit = in_.layout.units[u];
    made_.masks.push_back(in_.writer.allocate({.bytes = unit.trainable_elements * dtype_bytes(Dtype::u8),
                                               .label = in_.labels.number({unit.name, ": gradient mask"}),
                                               .segment = -1,
                                               .category = Category::optimizer_state}));
    in_.writer.run({.kernel = Kernel::load_mask, .unit = static_cast<int>(u)}, {{&made_.masks.back(), How::write}});
  }
}

void LoadLowering::load_ropes() {
  for (std::size_t r = 0; r < in_.in.graph.ropes.size(); ++r) {
    const std::vector<std::int64_t> sizes{in_.shape.sequence, in_.in.graph.rope_dims[r] / 2};
    const Dtype dtype = in_.job.precision.buffer;
    const int view = in_.views.are_kept() ? in_.views.number(whole_view(sizes, dtype)) : -1;
    const auto table = [&](const char* what) {
      return workspace("rope " + std::to_string(r) + what, checked_mul(sizes[0], sizes[1]) * dtype_bytes(dtype), dtype);
    };
    const Held cos = table(": cos"), sin = table(": sin");
    in_.writer.run({.kernel = Kernel::rope_table, .parameter = static_cast<int>(r)},
                   {Writer::viewed(cos, How::write, view), Writer::viewed(sin, How::write, view)});
    made_.workspace.insert(made_.workspace.end(), {cos, sin});
  }
}

void LoadLowering::load_workspaces() {
  if (!in_.is_cuda) return;
  in_.writer.begin_inside();
  const Held cublas = workspace("cublas workspace", cublas_workspace(in_.in.device), Dtype::u8);
  const bool uses_lt = uses_cublaslt(in_.in.graph, in_.job.precision, in_.shape);
  const Held lt = workspace("cublasLt workspace", uses_lt ? kCublasLtWorkspace : Bytes{0}, Dtype::u8);
  // The only one of PyTorch's own: results of a step are read one after the other.
  const Held scalar = pinned("scalar that the host reads", Bytes{4}, Dtype::f32);
  const Range inside = in_.writer.end_inside();
  in_.writer.run({.kernel = Kernel::workspaces, .inside = inside}, {{&cublas, How::write}, {&lt, How::write}});
  made_.workspace.insert(made_.workspace.end(), {cublas, lt, scalar});
}

void LoadLowering::load_numbers() {
  Residents& r = made_;
  r.loss = workspace("loss sum", Bytes{4});
  r.norm = workspace("gradient norm", Bytes{4});
  r.divisor = workspace("clip scale", Bytes{4});
  if (in_.is_cuda) r.norm_part = workspace("norm part", Bytes{4});
  in_.writer.run({.kernel = Kernel::zero},
                 {{&r.loss, How::write}, {&r.norm, How::write}, {&r.divisor, How::write}, {&r.norm_part, How::write}});
  if (!scales_loss(in_.job)) return;
  r.scale = workspace("loss scale", Bytes{4});
  r.growth = workspace("growth tracker", Bytes{4}, Dtype::i32);
  r.found_inf = workspace("found inf", Bytes{4});
  in_.writer.run({.kernel = Kernel::load_scale},
                 {{&r.scale, How::write}, {&r.growth, How::write}, {&r.found_inf, How::write}});
}

void LoadLowering::load_host_numbers() {
  const Offload& offload = in_.host.offload();
  if (!offload.states) return;
  const auto number = [&](const char* label, bool is_needed) {
    return in_.writer.allocate(in_.host.on_host({.bytes = is_needed ? Bytes{4} : Bytes{0},
                                                 .label = in_.labels.number(label),
                                                 .segment = -1,
                                                 .category = Category::workspace,
                                                 .dtype = Dtype::f32}));
  };
  const bool divides = in_.in.run.clip || scales_loss(in_.job);
  made_.host_norm = number("gradient norm, on the host", divides && offload.gradients);
  made_.host_divisor = number("clip scale, on the host", divides);
  made_.host_found_inf = number("found inf, on the host", scales_loss(in_.job));
}

}  // namespace vramfit::program
