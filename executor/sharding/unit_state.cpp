#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "executor/sharding/unit_state_torch.h"
#include "executor/tensor_torch.h"

namespace vramfit {

namespace {

constexpr std::int64_t kWholeParameter = -1;  // in WrittenUses: by a reduction

std::size_t at_index(int index) { return static_cast<std::size_t>(index); }

}  // namespace

at::Tensor UnitState::allocate(std::int64_t elements, Dtype dtype, Category category, const std::string& label) const {
  return allocate_tensor({elements}, dtype, {context_.device, category, label});
}

const UnitParameter& UnitState::slot_of(int parameter) const {
  return unit_.parameters[at_index(context_.layout.slot_of_parameter[at_index(parameter)])];
}

const Parameter& UnitState::parameter_of(const UnitParameter& p) const {
  return context_.graph.parameters[at_index(p.parameter)];
}

at::Tensor UnitState::slice(const at::Tensor& flat, const UnitParameter& p) {
  return flat.narrow(0, p.shard_offset, p.shard_elements);
}

at::Tensor UnitState::own_slice(const at::Tensor& piece, const UnitParameter& p) const {
  return piece.narrow(0, context_.shard_group.rank() * p.shard_elements, p.shard_elements);
}

void UnitState::load(RowSupply& rows) {
  shard_ = allocate(unit_.shard_elements, unit_.storage, Category::parameters, unit_.name + ": shard");
  shard_.zero_();
  for (const UnitParameter& p : unit_.parameters) rows.fill(parameter_of(p), unit_, p, slice(shard_, p));
  if (unit_.trainable_elements == 0) return;
  const auto make_state = [&](std::int64_t elements, Dtype dtype, const char* what) {
    at::Tensor state = allocate(elements, dtype, Category::optimizer_state, unit_.name + what);
    state.zero_();
    return state;
  };
  exp_avg_ = make_state(unit_.trainable_elements, context_.precision.state, ": exp_avg");
  exp_avg_sq_ = make_state(unit_.trainable_elements, context_.precision.state, ": exp_avg_sq");
  step_ = make_state(1, Dtype::f32, ": step");
}

void UnitState::load_states(StateSource& states) {
  bool is_first = true;
  double count = 0;
  for (const UnitParameter& p : unit_.parameters) {
    if (!p.trainable) continue;
    states.read_state("step", parameter_of(p), 0, 1, step_);
    const auto own = step_.item<double>();
    if (!std::exchange(is_first, false) && own != count) {
      throw InputError(
          fmt::format("--resume: unit {} holds parameters updated {} and {} times; resume with the wrapping "
                      "and freezing that the checkpoint was made with",
                      unit_.name, count, own));
    }
    count = own;
    const std::int64_t first = p.rows_per_rank * context_.shard_group.rank();
    const std::int64_t rows = std::clamp<std::int64_t>(p.rows - first, 0, p.rows_per_rank);
    if (rows == 0) continue;
    at::Tensor average = slice(exp_avg_, p).narrow(0, 0, rows * p.row_elements);
    at::Tensor squares = slice(exp_avg_sq_, p).narrow(0, 0, rows * p.row_elements);
    states.read_state("exp_avg", parameter_of(p), first, rows, average);
    states.read_state("exp_avg_sq", parameter_of(p), first, rows, squares);
  }
}

void UnitState::issue() {
  if (unit_.gathered_is_shard || gathered_.defined()) return;
  gathered_ =
      allocate(unit_.gathered_elements, unit_.compute, Category::unsharded_parameters, unit_.name + ": gathered");
  std::vector<at::Tensor> outputs;
  for (const UnitParameter& p : unit_.parameters) {
    outputs.push_back(gathered_.narrow(0, p.gathered_offset, p.padded_elements));
    if (kept_slice_.defined()) {
      slice_to_keep(p).copy_(kept_slice_.narrow(0, p.kept_offset, p.kept_elements));
    } else {
      own_slice(outputs.back(), p).copy_(slice(shard_, p));
    }
  }
  Collectives& group = kept_slice_.defined() ? context_.reshard_group : context_.shard_group;
  kept_slice_.reset();
  gathering_ = group.all_gather(std::move(outputs));
}

void UnitState::wait() {
  issue();
  if (gathering_) gathering_->wait();
  gathering_.reset();
}

void UnitState::release() {
  if (gathering_) wait();
  gathered_.reset();
}

at::Tensor UnitState::slice_to_keep(const UnitParameter& p) const {
  return gathered_.narrow(0, p.gathered_offset + context_.reshard_group.rank() * p.kept_elements, p.kept_elements);
}

void UnitState::reshard() {
  wait();
  kept_slice_ =
      allocate(unit_.kept_elements, unit_.compute, Category::unsharded_parameters, unit_.name + ": kept slice");
  for (const UnitParameter& p : unit_.parameters) {
    kept_slice_.narrow(0, p.kept_offset, p.kept_elements).copy_(slice_to_keep(p));
  }
  gathered_.reset();
}

at::Tensor UnitState::whole(const at::Tensor& flat, std::int64_t offset, const UnitParameter& p) const {
  return flat.narrow(0, offset, p.rows * p.row_elements).view(parameter_of(p).shape);
}

at::Tensor UnitState::used_part(const at::Tensor& full, const ParameterUse& use, bool by_column) {
  if (use.count < 0) return full;
  return full.narrow(by_column && full.dim() == 2 ? 1 : 0, use.first, use.count);
}

at::Tensor UnitState::view(const ParameterUse& use, bool by_column) const {
  const UnitParameter& p = slot_of(use.parameter);
  if (!unit_.gathered_is_shard && !gathered_.defined()) return {};
  const at::Tensor full =
      unit_.gathered_is_shard ? whole(shard_, p.shard_offset, p) : whole(gathered_, p.gathered_offset, p);
  return used_part(full, use, by_column);
}

void UnitState::make_gradient_shard() {
  if (gradient_shard_.defined()) return;
  gradient_shard_ =
      allocate(unit_.trainable_elements, unit_.gradient, Category::gradients, unit_.name + ": gradient shard");
  gradient_shard_.zero_();
  written_to_shard_.clear();
}

at::Tensor& UnitState::make_buffer(const UnitParameter& p, const ParameterUse& use, OpKind kind) {
  at::Tensor& buffer = buffers_[p.parameter];
  if (buffer.defined()) return buffer;
  written_to_buffer_.erase(p.parameter);
  if (gradient_dtype(kind, context_.precision) == unit_.reduce && sums_.contains(p.parameter)) {
    buffer = std::move(sums_.extract(p.parameter).mapped());
    written_to_buffer_[p.parameter] = {kWholeParameter};
    return buffer;
  }
  buffer = allocate(p.padded_elements, gradient_dtype(kind, context_.precision), Category::gradients,
                    parameter_of(p).name + ": gradient");
  const std::int64_t written_whole = use.count < 0 ? p.rows * p.row_elements : 0;
  buffer.narrow(0, written_whole, p.padded_elements - written_whole).zero_();
  return buffer;
}

GradientHome UnitState::gradient_home(const ParameterUse& use, OpKind kind, bool by_column) {
  const UnitParameter& p = slot_of(use.parameter);
  const bool direct = is_direct_gradient(kind, context_.precision, context_.layout);
  if (direct) make_gradient_shard();
  const at::Tensor full = direct ? whole(gradient_shard_, p.shard_offset, p) : whole(make_buffer(p, use, kind), 0, p);
  WrittenUses& written = (direct ? written_to_shard_ : written_to_buffer_)[use.parameter];
  const bool accumulate =
      std::ranges::any_of(written, [&](std::int64_t first) { return first == kWholeParameter || first == use.first; });
  if (!accumulate) written.push_back(use.first);
  return {used_part(full, use, by_column), accumulate};
}

void UnitState::accumulate() {
  for (int parameter : unit_.reduce_order) {
    const auto found = buffers_.find(parameter);
    if (found == buffers_.end()) continue;
    const at::Tensor buffer = std::move(found->second);
    buffers_.erase(found);
    at::Tensor& sum = sums_[parameter];
    if (buffer.scalar_type() == scalar_type(unit_.reduce)) {
      sum = buffer;  // it went on from the sum, if there was one
    } else if (sum.defined()) {
      add_into(sum, buffer);
    } else {
      const UnitParameter& p = slot_of(parameter);
      sum = allocate(p.padded_elements, unit_.reduce, Category::gradients,
                     parameter_of(p).name + ": accumulated gradient");
      sum.copy_(buffer);
    }
  }
}

void UnitState::reduce() {
  if (reducing_) throw std::logic_error(unit_.name + ": reduced twice at once");
  if (context_.layout.shards == 1) {
    if (!buffers_.empty()) make_gradient_shard();
    for (auto& [parameter, buffer] : buffers_) {
      const UnitParameter& p = slot_of(parameter);
      at::Tensor home = slice(gradient_shard_, p);
      add_into(home, buffer);
      written_to_shard_[parameter].push_back(kWholeParameter);
    }
    buffers_.clear();
    return;
  }
  for (int parameter : unit_.reduce_order) {
    const auto found = buffers_.find(parameter);
    if (found == buffers_.end()) continue;
    at::Tensor buffer = std::move(found->second);
    buffers_.erase(found);
    if (buffer.scalar_type() == scalar_type(unit_.reduce)) {
      pieces_.emplace_back(parameter, std::move(buffer));
      continue;
    }
    if (sums_.contains(parameter)) {
      at::Tensor sum = std::move(sums_.extract(parameter).mapped());
      add_into(sum, buffer);
      pieces_.emplace_back(parameter, std::move(sum));
      continue;
    }
    const UnitParameter& p = slot_of(parameter);
    at::Tensor piece =
        allocate(p.padded_elements, unit_.reduce, Category::communication, parameter_of(p).name + ": reduce piece");
    piece.copy_(buffer);
    pieces_.emplace_back(parameter, std::move(piece));
  }
  std::vector<at::Tensor> tensors;
  for (const auto& [parameter, piece] : pieces_) tensors.push_back(piece);
  if (!tensors.empty()) reducing_ = context_.shard_group.reduce_scatter(std::move(tensors));
}

void UnitState::finish() {
  if (pieces_.empty()) return;
  if (reducing_) reducing_->wait();
  reducing_.reset();
  make_gradient_shard();
  for (const auto& [parameter, piece] : pieces_) {
    const UnitParameter& p = slot_of(parameter);
    at::Tensor home = slice(gradient_shard_, p);
    add_into(home, own_slice(piece, p));
  }
  pieces_.clear();
}

void UnitState::step(const OptimizerFunctions& optimizer, const OptimizerOptions& options,
                     const GradientFactors& factors) {
  if (!gradient_shard_.defined()) return;
  at::Tensor trained = shard_.narrow(0, 0, unit_.trainable_elements);
  OptimizerCall call{.parameters = trained,
                     .gradients = gradient_shard_,
                     .exp_avg = exp_avg_,
                     .exp_avg_sq = exp_avg_sq_,
                     .step = step_,
                     .gradient_divisor = factors.divisor,
                     .found_inf = factors.found_inf,
                     .options = options};
  optimizer.step(call);
  gradient_shard_.reset();
}

}  // namespace vramfit
