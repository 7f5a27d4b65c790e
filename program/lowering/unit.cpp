#include "program/lowering/unit.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/numbers/index.h"
#include "program/lowering/host.h"
#include "program/stages/quantized_parts.h"

namespace vramfit::program {

bool UnitLowering::Written::note(std::int64_t first) {
  if (is_whole_) return true;
  if (!has_one_) one_ = first;
  if (!std::exchange(has_one_, true)) return false;
  if (one_ == first || std::ranges::find(more_, first) != more_.end()) return true;
  more_.push_back(first);
  return false;
}

UnitLowering::UnitLowering(const UnitsInputs& inputs, int number)
    : in_(inputs),
      unit_(inputs.layout.units[at(number)]),
      number_(number),
      views_(inputs.views.of(unit_)),
      gradients_(unit_.parameters.size()) {
  if (in_.layout.shards == 1) {
    in_order_ = unit_.reduce_order;
    std::ranges::sort(in_order_);
  }
  std::int64_t padded = 0, shard = 0, kept = 0;  // no more than the layout's sums, which are checked
  for (const UnitParameter& p : unit_.parameters) {
    padded += p.padded_elements;
    shard += p.shard_elements;
    kept += p.kept_elements;
  }
  const Bytes compute = dtype_bytes(unit_.compute);
  padded_bytes_ = padded * compute;
  shard_bytes_ = shard * compute;
  kept_bytes_ = kept * compute;
}

Buffer UnitLowering::buffer(std::int64_t elements, Dtype dtype, Category category, std::string_view what) const {
  return {.bytes = elements * dtype_bytes(dtype),
          .label = in_.labels.number({unit_.name, ": ", what}),
          .segment = -1,
          .category = category,
          .dtype = dtype};
}

Buffer UnitLowering::buffer_of(const UnitParameter& p, Dtype dtype, Category category, std::string_view what) const {
  return {.bytes = p.padded_elements * dtype_bytes(dtype),
          .label = in_.labels.number({in_.graph.parameters[at(p.parameter)].name, ": ", what}),
          .segment = -1,
          .category = category,
          .dtype = dtype};
}

void UnitLowering::load(const Held& staging) {
  Writer& writer = in_.writer;
  shards_.reserve(unit_.storages.size());
  for (const UnitStorage& storage : unit_.storages) {
    const std::string_view name =
        storage.quantization != nullptr ? storage.quantization->name : dtype_name(storage.dtype);
    const bool is_usual = shards_.empty() && storage.quantization == nullptr;
    const std::string what = is_usual ? "shard" : std::string(name) + " shard";
    const bool has_codes = shards_.empty() && unit_.codes_bytes > 0;
    shards_.push_back(writer.allocate(
        placed(buffer(storage.elements, storage.dtype, Category::parameters, has_codes ? "trained, on the host" : what),
               has_codes || in_.host.offload().parameters)));
    writer.run({.kernel = Kernel::zero}, {{&shards_.back(), How::write}});
  }
  if (unit_.scales > 0) {
    scales_ = writer.allocate(buffer(unit_.scales, Dtype::f32, Category::parameters, "scales of the shard"));
    writer.run({.kernel = Kernel::zero}, {{&scales_, How::write}});
  }
  Writer::Operands& operands = writer.operands();
  add_shards(shards_, How::write, operands);
  if (scales_) operands.emplace_back(&scales_, How::write);
  operands.emplace_back(&staging, How::write);
  writer.run(run_of(Kernel::load_shard), operands);
  load_on_host();
  if (unit_.trainable_elements == 0) return;
  states_.reserve(in_.optimizer.states.size());
  for (const OptimizerState& state : in_.optimizer.states) {
    states_.push_back(writer.allocate(in_.host.placed_state(
        buffer(elements_of(state, unit_), dtype_of(state, in_.precision), Category::optimizer_state, state.name),
        state.holds == OptimizerState::Holds::updates)));
  }
  if (states_.empty()) return;
  Writer::Operands& states = writer.operands();
  add_states(How::write, states);
  writer.run(run_of(Kernel::load_states), states);
}

void UnitLowering::add_shards(const std::vector<Held>& shards, How how, Writer::Operands& operands) const {
  for (std::size_t s = 0; s < shards.size(); ++s) {
    operands.push_back(Writer::viewed(shards[s], how, views_.shards[s]));
  }
}

void UnitLowering::add_states(How how, Writer::Operands& operands) const {
  for (const Held& state : states_) operands.emplace_back(&state, how);
}

int UnitLowering::start(Start start, Writer::Listed operands) {
  start.token = in_.tokens++;
  start.unit = number_;
  in_.writer.start(start, operands);
  return start.token;
}

int UnitLowering::start_gather(Axis axis, Stream stream) {
  return start({.collective = Collective::all_gather,
                .axis = axis,
                .accesses = {},
                .bytes = padded_bytes_,
                .stream = stream,
                .part = axis == Axis::reshard ? kept_bytes_ : shard_bytes_},
               {Writer::viewed(gathered_, How::add, views_.gathered)});
}

int UnitLowering::start_reduction() {
  std::int64_t padded = 0, shard = 0;
  Writer::Operands& operands = in_.writer.operands();
  for (const auto& [slot, piece] : pieces_) {
    padded += unit_.parameters[slot].padded_elements;
    shard += unit_.parameters[slot].shard_elements;
    operands.emplace_back(&piece, How::add);
  }
  const Bytes reduce = dtype_bytes(unit_.reduce);
  return start({.collective = Collective::reduce_scatter,
                .axis = Axis::shard,
                .accesses = {},
                .bytes = padded * reduce,
                .part = shard * reduce},
               operands);
}

Work UnitLowering::passes(Bytes bytes) const {
  return {.launches = static_cast<std::int64_t>(unit_.parameters.size()), .bytes = static_cast<double>(bytes.n)};
}

void UnitLowering::add_rows(Kernel kernel, std::size_t slot, const Held& gradient, Dtype dtype) {
  const UnitParameter& p = unit_.parameters[slot];
  if (p.has_fp8_gradient) return add_fp8_rows(slot, gradient, dtype);
  make_gradient_shard();
  const Bytes bytes = p.shard_elements * (dtype_bytes(dtype) + 2 * dtype_bytes(unit_.gradient));
  in_.writer.run(run_of(kernel, p.parameter),
                 {Writer::viewed(gradient, How::read, views_.own_rows[slot]),
                  Writer::viewed(gradient_shard_, How::add, views_.gradients[slot])},
                 Work{.bytes = static_cast<double>(bytes.n)});
}

void UnitLowering::wait_for(int& token) {
  if (token >= 0) in_.writer.write(Wait{token});
  token = -1;
}

void UnitLowering::issue() {
  if (unit_.gathered_is_shard || gathered_) return;
  gathered_ =
      in_.writer.allocate(buffer(unit_.gathered_elements, unit_.compute, Category::unsharded_parameters, "gathered"));
  const bool in_group = static_cast<bool>(kept_slice_);
  if (in_.host.offload().parameters && !in_group) return fetch();
  const How how = in_.layout.shards == 1 ? How::write : How::write_part;
  in_group ? fill_from_kept(how) : fill_gathered(shards_, codes_scratch(), how, Stream::compute);
  kept_slice_.reset();
  if (in_.layout.shards == 1) return;
  gathering_ = start_gather(in_group ? Axis::reshard : Axis::shard);
}

void UnitLowering::fill_from_kept(How how) {
  in_.writer.run(run_of(Kernel::gather_kept),
                 {Writer::viewed(kept_slice_, How::read, views_.kept), Writer::viewed(gathered_, how, views_.slices)},
                 passes(unit_.kept_elements * (2 * dtype_bytes(unit_.compute))));
}

Held UnitLowering::codes_scratch() {
  const bool by_calls = in_.device == DeviceKind::cuda && in_.kernels == KernelSource::libtorch;
  const std::int64_t numbers = by_calls ? dequantize_scratch(unit_) : 0;
  return numbers == 0 ? Held()
                      : in_.writer.allocate(buffer(numbers, Dtype::f32, Category::temporaries, "scratch for codes"));
}

void UnitLowering::fill_gathered(const std::vector<Held>& shards, const Held& scratch, How how, Stream stream) {
  Writer::Operands& operands = in_.writer.operands();
  add_shards(shards, How::read, operands);
  if (unit_.codes_bytes > 0) {
    const bool came = static_cast<bool>(arriving_codes_);  // for this gather
    operands.front() = Writer::viewed(came ? shards.front() : plain_, How::read, views_.plain);
    operands.insert(operands.begin(), Writer::viewed(came ? arriving_codes_ : codes_, How::read, views_.codes));
  }
  if (scales_) operands.emplace_back(&scales_, How::read);
  operands.push_back(Writer::viewed(gathered_, how, views_.own));
  if (scratch) operands.emplace_back(&scratch, How::write);
  Bytes bytes = card_bytes(unit_);
  for (const UnitStorage& storage : unit_.storages) bytes += storage.whole_elements * dtype_bytes(unit_.compute);
  // Which multiply by scales afterwards.
  const bool by_calls = in_.device == DeviceKind::cuda && in_.kernels == KernelSource::libtorch;
  if (by_calls) bytes += 2 * unit_.scaled_elements * dtype_bytes(unit_.compute);
  const DequantizeTraffic calls = scratch ? dequantize_traffic(unit_) : DequantizeTraffic{};
  Work work = passes(bytes + calls.bytes);
  work.launches += calls.launches + (by_calls ? unit_.scales : 0);
  Run run = run_of(Kernel::gather_own);
  run.stream = stream;
  in_.writer.run(run, operands, work);
}

void UnitLowering::wait() {
  issue();
  wait_for(gathering_);
  arriving_.clear();
  arriving_codes_.reset();
}

void UnitLowering::release() {
  wait_for(gathering_);
  arriving_.clear();
  arriving_codes_.reset();
  gathered_.reset();
}

void UnitLowering::reshard() {
  wait();
  kept_slice_ =
      in_.writer.allocate(buffer(unit_.kept_elements, unit_.compute, Category::unsharded_parameters, "kept slice"));
  in_.writer.run(
      run_of(Kernel::keep_slice),
      {Writer::viewed(gathered_, How::read, views_.slices), Writer::viewed(kept_slice_, How::write, views_.kept)},
      passes(unit_.kept_elements * (2 * dtype_bytes(unit_.compute))));
  gathered_.reset();
}

Buffer UnitLowering::gradient_shard_buffer() const {
  return buffer(gradient_shard_elements(unit_), unit_.gradient, Category::gradients, "gradient shard");
}

void UnitLowering::forget_written_shard() {
  for (Gradients& gradients : gradients_) gradients.written_to_shard.clear();
}

void UnitLowering::make_gradient_shard() {
  if (gradient_shard_) return;
  gradient_shard_ = in_.writer.allocate(gradient_shard_buffer());
  forget_written_shard();
  in_.writer.run(run_of(Kernel::zero), {{&gradient_shard_, How::write}});
}

UnitLowering::Home UnitLowering::home(OpKind kind, const ParameterUse& use) {
  const std::size_t slot = slot_of(use.parameter);
  const UnitParameter& p = unit_.parameters[slot];
  Gradients& gradients = gradients_[slot];
  if (is_direct_gradient(kind, use.parameter, in_.precision, in_.layout)) {
    const bool is_new = !gradient_shard_;
    if (is_new) {
      gradient_shard_ = in_.writer.declare(gradient_shard_buffer());
      forget_written_shard();
    }
    const Bytes whole = gradient_shard_elements(unit_) * dtype_bytes(unit_.gradient);
    return {gradient_shard_, is_new, whole, gradients.written_to_shard.note(use.first),
            p.shard_offset - unit_.fp8_gradient_elements};
  }
  Gradient& gradient = gradients.buffer;
  Written& written = gradients.written_to_buffer;
  const bool is_there = static_cast<bool>(gradient.held);
  if (!is_there) gradient.dtype = gradient_dtype(kind, in_.precision);
  if (!is_there && gradient.dtype == unit_.reduce && gradients.sum) {
    gradient.held = std::move(gradients.sum);
    written.set_whole();
  }
  const bool is_new = !gradient.held;
  if (is_new) {
    gradient.held = in_.writer.declare(buffer_of(p, gradient.dtype, Category::gradients, "gradient"));
    written.clear();
  }
  const std::int64_t own = use.count < 0 ? p.rows * p.row_elements : 0;
  const Bytes filled = (p.padded_elements - own) * dtype_bytes(gradient.dtype);
  return {gradient.held, is_new, filled, written.note(use.first)};
}

void UnitLowering::accumulate() {
  for (const int parameter : unit_.reduce_order) {
    const std::size_t slot = slot_of(parameter);
    const UnitParameter& p = unit_.parameters[slot];
    Gradients& gradients = gradients_[slot];
    if (!gradients.buffer.held) continue;
    const Gradient gradient = std::move(gradients.buffer);
    Held& sum = gradients.sum;
    if (gradient.dtype == unit_.reduce) {
      sum = gradient.held;  // it went on from the sum, if there was one
    } else if (sum) {
      in_.writer.run(run_of(Kernel::add, p.parameter), {{&gradient.held, How::read}, {&sum, How::add}});
    } else {
      sum = in_.writer.allocate(buffer_of(p, unit_.reduce, Category::gradients, "accumulated gradient"));
      in_.writer.run(run_of(Kernel::copy, p.parameter), {{&gradient.held, How::read}, {&sum, How::write}});
    }
  }
}

void UnitLowering::add_to_shard() {
  for (const int parameter : in_order_) {
    const std::size_t slot = slot_of(parameter);
    Gradients& gradients = gradients_[slot];
    if (!gradients.buffer.held) continue;
    add_rows(Kernel::add_whole, slot, gradients.buffer.held, gradients.buffer.dtype);
    gradients.written_to_shard.set_whole();
  }
  for (auto parameter = in_order_.rbegin(); parameter != in_order_.rend(); ++parameter) {
    gradients_[slot_of(*parameter)].buffer.held.reset();
  }
}

Held UnitLowering::piece_of(std::size_t slot, Gradient gradient) {
  if (gradient.dtype == unit_.reduce) return std::move(gradient.held);
  Writer& writer = in_.writer;
  const UnitParameter& p = unit_.parameters[slot];
  if (Held sum = std::move(gradients_[slot].sum)) {
    writer.run(run_of(Kernel::add, p.parameter), {{&gradient.held, How::read}, {&sum, How::add}});
    return sum;
  }
  Held piece = writer.allocate(buffer_of(p, unit_.reduce, Category::communication, "reduce piece"));
  writer.run(run_of(Kernel::copy, p.parameter), {{&gradient.held, How::read}, {&piece, How::write}});
  return piece;
}

void UnitLowering::reduce() {
  if (in_.layout.shards == 1) return add_to_shard();
  pieces_.reserve(unit_.reduce_order.size());
  for (const int parameter : unit_.reduce_order) {
    const std::size_t slot = slot_of(parameter);
    Gradient& gradient = gradients_[slot].buffer;
    if (!gradient.held) continue;
    const bool is_coded = unit_.sends_fp8_gradients && unit_.parameters[slot].has_fp8_gradient;
    is_coded ? sent_.emplace_back(slot, codes_of(slot, std::move(gradient)))
             : pieces_.emplace_back(slot, piece_of(slot, std::move(gradient)));
  }
  if (!sent_.empty()) start_exchange();
  if (!pieces_.empty()) reducing_ = start_reduction();
}

void UnitLowering::finish() {
  const bool leaves = in_.host.offload().gradients;
  if (leaves) in_.host.land();
  if (!sent_.empty()) add_exchanged();
  if (!pieces_.empty()) add_pieces();
  if (leaves && gradient_shard_) leave();
}

void UnitLowering::add_pieces() {
  wait_for(reducing_);
  for (const auto& [slot, piece] : pieces_) {
    add_rows(Kernel::add_own, slot, piece, unit_.reduce);
  }
  pieces_.clear();
}

void UnitLowering::update(const Held& divisor, const Held& found_inf) {
  Held gradient = readable_gradient();
  if (!gradient) return;
  const Held numbers = numbers_to_update();
  run_update(numbers ? numbers : shards_.front(), gradient, divisor, found_inf, Stream::compute);
  drop_gradients();
  gradient.reset();
  if (numbers) keep_numbers(numbers);
}

void UnitLowering::drop_gradients() {
  gradient_shard_.reset();
  gradient_codes_.reset();
  gradient_scales_.reset();
}

}  // namespace vramfit::program
