#include "program/lowering/update.h"

#include <algorithm>
#include <string>

#include "base/numbers/index.h"
#include "program/lowering/host.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/gradient_mask.h"

namespace vramfit::program {

Held UpdateLowering::temporary(const char* label, Bytes bytes) const {
  return in_.writer.allocate(
      {.bytes = bytes, .label = in_.labels.number(label), .segment = -1, .category = Category::temporaries});
}

void UpdateLowering::sum_replicas(const std::vector<int>& bucket) {
  finish_fp8_sums();  // of the buckets before, which the backward pass has hidden
  Writer::Operands shards;
  for (const int unit : bucket) {
    const Held& shard = in_.units[at(unit)].gradient_shard();
    if (shard) shards.emplace_back(&shard, How::add);
  }
  replica_sums_.push_back({shards.empty() ? -1 : in_.tokens, bucket});
  if (!shards.empty()) {
    in_.writer.start(
        {.collective = Collective::all_reduce, .axis = Axis::replicate, .accesses = {}, .token = in_.tokens++}, shards);
  }
  for (const int unit : bucket) in_.units[at(unit)].start_fp8_sum();
}

void UpdateLowering::finish_fp8_sums() {
  for (const ReplicaSum& sum : replica_sums_) {
    for (const int unit : sum.bucket) in_.units[at(unit)].finish_fp8_sum();
  }
}

void UpdateLowering::wait_for(const ReplicaSum& sum) {
  if (sum.token >= 0) in_.writer.write(Wait{sum.token});
  for (const int unit : sum.bucket) in_.units[at(unit)].finish_fp8_sum();
}

void UpdateLowering::wait_for_replicas() {
  for (const ReplicaSum& sum : replica_sums_) wait_for(sum);
  replica_sums_.clear();
}

void UpdateLowering::mask() {
  wait_for_replicas();
  Writer::Operands operands;
  for (const UnitLowering& unit : in_.units) operands.emplace_back(&unit.gradient_shard(), How::add);
  for (const Held& held : there_.masks) operands.emplace_back(&held, How::read);
  in_.writer.begin_inside();
  if (std::holds_alternative<RandomGradientMask>(in_.job.gradient_mask) && in_.is_cuda) {
    const Bytes bytes = mask_part(in_.layout) * dtype_bytes(Dtype::i64);
    const Held words = temporary("mask: words", bytes);
    const Held bits = temporary("mask: bits", bytes);
  }
  const Range inside = in_.writer.end_inside();
  in_.writer.run({.kernel = Kernel::mask, .inside = inside}, operands, mask_work(in_.job, in_.layout));
}

std::array<SquaresCalls, 2> calls_of_squares(std::int64_t shard_elements, bool is_cuda) {
  const std::int64_t part = is_cuda ? kNormPart : shard_elements + 1;
  return {{{Kernel::norm_parts, part, shard_elements / part}, {Kernel::norm_rest, shard_elements % part, 1}}};
}

Work work_of_squares(std::int64_t elements, Dtype gradient) {
  const Bytes bytes = elements * dtype_bytes(gradient);
  return {.launches = 2, .bytes = static_cast<double>(bytes.n)};
}

void UpdateLowering::add_squares(int unit, const Held& gradient, const SquaresCalls& calls) const {
  const auto& [kernel, elements, times] = calls;
  if (elements == 0 || times == 0) return;
  in_.writer.begin_inside();
  if (in_.is_cuda) {
    const SumScratch scratch = sum_scratch(elements, in_.in.device);
    const Held partials = temporary("clip: partials", scratch.partials);
    const Held counter = temporary("clip: counter", scratch.counter);
  }
  const Range inside = in_.writer.end_inside();
  const vramfit::Unit& layout = in_.layout.units[at(unit)];
  const bool is_rest = kernel == Kernel::norm_rest;
  const std::int64_t first = is_rest ? layout.trainable_elements - elements : 0;
  const int view = in_.views.number(list_view(first, elements * times, layout.gradient));
  in_.writer.run({.kernel = kernel, .unit = unit, .inside = inside, .times = times},
                 {Writer::viewed(gradient, How::read, view), {&there_.norm, How::add}, {&there_.norm_part, How::write}},
                 work_of_squares(elements, layout.gradient));
}

void UpdateLowering::clip() {
  wait_for_replicas();
  in_.host.offload().gradients ? clip_on_host() : add_all_squares();
  if (in_.layout.shards > 1) {
    const int token = in_.tokens++;
    in_.writer.start({.collective = Collective::all_reduce, .axis = Axis::shard, .accesses = {}, .token = token},
                     {{&there_.norm, How::add}});
    in_.writer.write(Wait{token});
  }
  in_.writer.run({.kernel = Kernel::scale},
                 {{&there_.norm, How::add},
                  {&there_.divisor, How::write},
                  {&there_.scale, How::read},
                  {&there_.found_inf, How::write}},
                 kDivisorWork);
}

void UpdateLowering::add_all_squares() const {
  in_.writer.run({.kernel = Kernel::norm_begin}, {{&there_.norm, How::write}});
  for (std::size_t u = 0; u < in_.units.size(); ++u) {
    const Held gradient = in_.units[u].readable_gradient();
    if (!gradient) continue;
    for (const SquaresCalls& calls : calls_of_squares(in_.layout.units[u].trainable_elements, in_.is_cuda)) {
      add_squares(static_cast<int>(u), gradient, calls);
    }
  }
}

UpdateLowering::Numbers UpdateLowering::numbers() const {
  const bool divides = in_.in.run.clip || scales_loss(in_.job);
  return {.divisor = divides ? there_.divisor : Held{}, .found_inf = there_.found_inf};
}

void UpdateLowering::update() {
  wait_for_replicas();
  if (in_.host.offload().states) {
    update_on_host();
  } else {
    const Numbers all = numbers();
    if (all.found_inf && is_of_calls(in_.job.optimizer_implementation)) {
      in_.writer.write(HostRead{all.found_inf.buffer()});
    }
    for (UnitLowering& unit : in_.units) unit.update(all.divisor, all.found_inf);
  }
  if (std::holds_alternative<DynamicLossScale>(loss_scaling(in_.job))) {
    in_.writer.run({.kernel = Kernel::update_scale},
                   {{&there_.scale, How::add}, {&there_.growth, How::add}, {&there_.found_inf, How::read}});
  }
  read_results();
}

void UpdateLowering::update_in_backward(int unit) {
  const auto sum =
      std::ranges::find_if(replica_sums_, [&](const ReplicaSum& s) { return std::ranges::count(s.bucket, unit) > 0; });
  if (sum != replica_sums_.end()) {
    wait_for(*sum);
    replica_sums_.erase(sum);
  }
  in_.units[at(unit)].update({}, {});  // nothing is clipped or scaled
}

void UpdateLowering::read_results() const {
  in_.writer.write(Mark{.phase = Phase::optimizer});
  if (data_ranks(in_.job) > 1) {
    const int token = in_.tokens++;
    in_.writer.start({.collective = Collective::all_reduce, .axis = Axis::data, .accesses = {}, .token = token},
                     {{&there_.loss, How::add}});
    in_.writer.write(Wait{token});
  }
  for (const Held* result : {&there_.loss, &there_.norm, &there_.scale, &there_.found_inf}) {
    if (*result) in_.writer.write(HostRead{result->buffer()});
  }
}

}  // namespace vramfit::program
