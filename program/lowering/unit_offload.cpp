// What of a unit lies in host memory: shards that come for each gather, gradients that leave, the update on the CPU.
#include <string>
#include <utility>
#include <vector>

#include "base/numbers/index.h"
#include "program/lowering/host.h"
#include "program/lowering/unit.h"

namespace vramfit::program {

Buffer UnitLowering::placed(Buffer buffer, bool on_host) const { return on_host ? in_.host.on_host(buffer) : buffer; }

void UnitLowering::load_on_host() {
  const Offload& offload = in_.host.offload();
  if (unit_.trainable_elements == 0 || !offload.states) return;
  for (const OptimizerSums& sums : in_.optimizer.sums) {
    host_sums_.push_back(in_.writer.allocate(placed(sums_buffer(sums), true)));
  }
  if (offload.gradients) host_gradient_ = in_.writer.allocate(placed(gradient_shard_buffer(), true));
  if (unit_.codes_bytes > 0) return load_codes();
  if (offload.parameters) return;
  const UnitStorage& storage = unit_.storages.front();
  master_ = in_.writer.allocate(
      placed(buffer(unit_.trainable_elements, storage.dtype, Category::parameters, "trained, on the host"), true));
  in_.host.to_host(number_, Writer::viewed(shards_.front(), How::read, views_.trained),
                   Writer::viewed(master_, How::write, views_.trained),
                   unit_.trainable_elements * dtype_bytes(storage.dtype));
  in_.host.order(Stream::to_host, Stream::compute);
}

void UnitLowering::load_codes() {
  const UnitStorage& storage = unit_.storages.front();
  const std::string what = std::string(unit_.parameters.front().trained_as->name) + " codes of what is trained";
  const bool stay = in_.host.offload().parameters;
  codes_ = in_.writer.allocate(placed(buffer(unit_.codes_bytes, Dtype::u8, Category::parameters, what), stay));
  if (stay) {
    in_.writer.run({.kernel = Kernel::zero}, {{&codes_, How::write}});
    in_.host.order(Stream::compute, Stream::host);
    encode(codes_);
    return in_.host.order(Stream::host, Stream::compute);
  }
  plain_ = in_.writer.allocate(buffer(plain_elements(unit_), storage.dtype, Category::parameters, "shard"));
  in_.host.order(Stream::compute, Stream::host);
  send_codes();
  in_.host.order(Stream::to_device, Stream::compute);
  in_.host.order(Stream::to_device, Stream::host);
  in_.host.begin_codes();
}

void UnitLowering::encode(const Held& into) {
  Run run = run_of(Kernel::encode);
  run.stream = Stream::host;
  const Bytes masters = unit_.coded_elements * dtype_bytes(unit_.storages.front().dtype), codes{unit_.codes_bytes};
  in_.writer.run(
      run, {Writer::viewed(shards_.front(), How::read, views_.masters), Writer::viewed(into, How::write, views_.codes)},
      Work{.bytes = static_cast<double>((masters + codes).n)});
}

void UnitLowering::send_codes() {
  if (in_.host.offload().parameters) return encode(codes_);
  const UnitStorage& storage = unit_.storages.front();
  HostSide::CodesStaging& staging = in_.host.next_codes();
  encode(staging.held);
  const Bytes codes{unit_.codes_bytes};
  std::vector<HostSide::Copy> copies{{.from = Writer::viewed(staging.held, How::read, views_.all_codes),
                                      .to = Writer::viewed(codes_, How::write, views_.all_codes),
                                      .bytes = codes}};
  if (plain_) {
    copies.push_back({.from = Writer::viewed(shards_.front(), How::read, views_.plain_in_shard),
                      .to = {&plain_, How::write},
                      .bytes = plain_elements(unit_) * dtype_bytes(storage.dtype)});
  }
  staging.token = in_.host.copy_all(Stream::to_device, copies, number_);
}

void UnitLowering::fetch() {
  Writer& writer = in_.writer;
  const bool is_one = in_.layout.shards == 1;
  const bool is_as_stored = unit_.storages.size() == 1 && unit_.storages.front().dtype == unit_.compute;
  if (is_one && is_as_stored && unit_.codes_bytes == 0) {
    gathering_ =
        in_.host.to_device(number_, {&shards_.front(), How::read}, {&gathered_, How::write}, shard_bytes(unit_));
    return;
  }
  const bool has_codes = unit_.codes_bytes > 0;
  if (has_codes) {
    arriving_codes_ = writer.allocate(buffer(unit_.codes_bytes, Dtype::u8, Category::communication, "arriving codes"));
  }
  for (const UnitStorage& storage : unit_.storages) {
    const std::int64_t elements = has_codes && arriving_.empty() ? plain_elements(unit_) : storage.elements;
    arriving_.push_back(writer.allocate(buffer(elements, storage.dtype, Category::communication, "arriving shard")));
  }
  const Held scratch = codes_scratch();
  bring_shards();
  fill_gathered(arriving_, scratch, is_one ? How::write : How::write_part, Stream::to_device);
  if (scratch) arriving_.push_back(scratch);  // another stream's, which the free must wait for as well
  if (!is_one) {
    gathering_ = start_gather(Axis::shard, Stream::to_device);
    return;
  }
  gathering_ = in_.tokens++;
  writer.write(Record{gathering_, Stream::to_device});
}

void UnitLowering::bring_shards() {
  const auto bring = [&](const Held& from, int view, const Held& to, Bytes bytes) {
    in_.host.to_device(number_, Writer::viewed(from, How::read, view), {&to, How::write}, bytes);
  };
  constexpr int kAll = -1;
  if (arriving_codes_) bring(codes_, views_.all_codes, arriving_codes_, Bytes{unit_.codes_bytes});
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    const bool is_beside_codes = s == 0 && arriving_codes_;
    const std::int64_t elements = is_beside_codes ? plain_elements(unit_) : unit_.storages[s].elements;
    if (!arriving_[s]) continue;  // codes are all that the storage has
    bring(shards_[s], is_beside_codes ? views_.plain_in_shard : kAll, arriving_[s],
          elements * dtype_bytes(unit_.storages[s].dtype));
  }
}

void UnitLowering::leave() {
  in_.host.leave({.unit = number_,
                  .shard = std::move(gradient_shard_),
                  .sum = host_gradient_,
                  .adds = std::exchange(has_left_, true),
                  .view = views_.all_gradients,
                  .bytes = unit_.trainable_elements * dtype_bytes(unit_.gradient)});
  gradient_shard_.reset();
}

int UnitLowering::send_gradient(const Held& staging) {
  return in_.host.to_host(number_, Writer::viewed(gradient_shard_, How::read, views_.all_gradients),
                          Writer::viewed(staging, How::write, views_.all_gradients),
                          unit_.trainable_elements * dtype_bytes(unit_.gradient));
}

void UnitLowering::update_on_host(const Held& gradient, const Held& divisor, const Held& found_inf) {
  const bool are_there = in_.host.offload().parameters;  // and come for the next gather
  const bool has_codes = unit_.codes_bytes > 0;
  const Held& trained = are_there || has_codes ? shards_.front() : master_;
  run_update(trained, gradient, divisor, found_inf, Stream::host);
  has_left_ = false;
  if (has_codes) send_codes();
  if (are_there || has_codes) return;
  in_.host.to_device(number_, Writer::viewed(master_, How::read, views_.trained),
                     Writer::viewed(shards_.front(), How::write, views_.trained),
                     unit_.trainable_elements * dtype_bytes(unit_.storages.front().dtype));
}

Buffer UnitLowering::sums_buffer(const OptimizerSums& sums) const {
  return buffer(sums.numbers(unit_), Dtype::f32, Category::temporaries, sums.name);
}

void UnitLowering::run_update(const Held& trained, const Held& gradient, const Held& divisor, const Held& found_inf,
                              Stream stream) {
  const DeviceKind device = stream == Stream::host ? DeviceKind::cpu : in_.device;
  UnitUpdate update = update_of(unit_, in_.precision, {device, in_.kernels, in_.form});
  update.divides = static_cast<bool>(divisor);
  Held scratch;
  const std::int64_t numbers = in_.optimizer.scratch == nullptr ? 0 : in_.optimizer.scratch(update);
  if (numbers > 0) {
    scratch = in_.writer.allocate(buffer(numbers, Dtype::f32, Category::temporaries, "update scratch"));
  }
  std::vector<Held> sums;
  const Range temporaries = temporaries_of(update);
  const auto run = [&](How parameters, const Work& work) {
    Writer::Operands& operands = in_.writer.operands();
    operands.assign({Writer::viewed(trained, parameters, views_.trained),
                     Writer::viewed(gradient, How::read, views_.all_gradients),
                     {&divisor, How::read},
                     {&found_inf, How::read}});
    add_states(How::add, operands);
    if (scratch || !sums.empty()) operands.emplace_back(&scratch, How::write);
    for (const Held& sum : sums) operands.emplace_back(&sum, How::read);
    if (parameters == How::read) operands.back().how = How::write;  // finds the last sums
    Run call = run_of(Kernel::update);
    call.stream = stream;
    call.inside = temporaries;
    in_.writer.run(call, operands, work);
  };
  sums.reserve(in_.optimizer.sums.size());
  for (const OptimizerSums& each : in_.optimizer.sums) {
    sums.push_back(stream == Stream::host ? host_sums_[sums.size()] : in_.writer.allocate(sums_buffer(each)));
    run(How::read, each.work(update));
    if (in_.layout.shards > 1) add_over_ranks(sums.back());
  }
  run(How::add, in_.optimizer.work(update));
}

Range UnitLowering::temporaries_of(const UnitUpdate& update) const {
  if (in_.optimizer.temporaries == nullptr) return {};
  in_.writer.begin_inside();
  std::vector<Held> places;
  for (const UpdateTemporary& made : in_.optimizer.temporaries(unit_, update)) {
    if (made.place >= places.size()) places.resize(made.place + 1);
    const std::string_view parameter = in_.graph.parameters[at(unit_.parameters[made.slot].parameter)].name;
    places[made.place] = in_.writer.allocate({.bytes = made.bytes,
                                              .label = in_.labels.number({parameter, ": ", made.name}),
                                              .segment = -1,
                                              .category = Category::temporaries});
  }
  for (Held& held : places) held.reset();
  return in_.writer.end_inside();
}

void UnitLowering::add_over_ranks(const Held& sums) {
  const Start all{.collective = Collective::all_reduce, .axis = Axis::shard, .accesses = {}};
  in_.writer.write(Wait{start(all, {{&sums, How::add}})});
}

}  // namespace vramfit::program
