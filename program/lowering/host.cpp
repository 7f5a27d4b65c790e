#include "program/lowering/host.h"

#include <algorithm>
#include <utility>

namespace vramfit::program {

namespace {

constexpr std::int64_t kStagingBuffers = 2;  // one is filled while the host reads the other

}  // namespace

Work work_of_copy(Bytes bytes, bool is_cuda) {
  const auto crossing = static_cast<double>(bytes.n);
  return is_cuda ? Work{.unit = Work::Unit::host_link, .bytes = crossing} : Work{.bytes = 2 * crossing};
}

Staging gradients_staging(const UnitLayout& layout, const Offload& offload, bool sums) {
  Staging staging;
  if (!offload.states || (offload.gradients && !sums)) return staging;
  for (const Unit& unit : layout.units) {
    if (unit.trainable_elements == 0) continue;
    staging.each = std::max(staging.each, unit.trainable_elements * dtype_bytes(unit.gradient));
    staging.dtype = unit.gradient;
    ++staging.buffers;
  }
  staging.buffers = std::min(staging.buffers, kStagingBuffers);
  return staging;
}

Staging codes_staging(const UnitLayout& layout, const Offload& offload) {
  Staging staging{.dtype = Dtype::u8};
  if (offload.parameters) return staging;  // codes stay in host memory until a gather
  for (const Unit& unit : layout.units) {
    staging.each = std::max(staging.each, Bytes{unit.codes_bytes});
    staging.buffers += unit.codes_bytes > 0 ? 1 : 0;
  }
  staging.buffers = std::min(staging.buffers, kStagingBuffers);
  return staging;
}

Buffer HostSide::on_host(Buffer buffer) const {
  buffer.space = is_cuda_ ? Space::pinned : Space::host;
  return buffer;
}

Buffer HostSide::placed_state(Buffer state, bool is_count) const {
  if (offload_.states) return on_host(state);
  if (offload_.paged_states && is_cuda_ && !is_count) state.space = Space::managed;
  return state;
}

void HostSide::load_staging(const UnitLayout& layout, bool sums) {
  const Staging staging = gradients_staging(layout, offload_, sums);
  for (std::int64_t i = 0; i < staging.buffers; ++i) {
    staging_.push_back(writer_.allocate(on_host({.bytes = staging.each,
                                                 .label = labels_.number("gradients on their way to the host"),
                                                 .segment = -1,
                                                 .category = Category::communication,
                                                 .dtype = staging.dtype})));
  }
}

void HostSide::load_codes(const UnitLayout& layout) {
  const Staging staging = codes_staging(layout, offload_);
  for (std::int64_t i = 0; i < staging.buffers; ++i) {
    codes_.push_back({.held = writer_.allocate(on_host({.bytes = staging.each,
                                                        .label = labels_.number("codes on their way to the card"),
                                                        .segment = -1,
                                                        .category = Category::communication,
                                                        .dtype = staging.dtype}))});
    writer_.run({.kernel = Kernel::zero}, {{&codes_.back().held, How::write}});
  }
}

HostSide::CodesStaging& HostSide::next_codes() {
  CodesStaging& staging = codes_.at(next_codes_++ % codes_.size());
  if (staging.token >= 0) writer_.write(Wait{staging.token, Stream::host});
  return staging;
}

void HostSide::order(Stream from, Stream to) {
  const int token = tokens_++;
  writer_.write(Record{token, from});
  writer_.write(Wait{token, to});
}

int HostSide::copy_all(Stream stream, std::span<const Copy> copies, int unit) {
  order(Stream::compute, stream);
  order(Stream::host, stream);
  for (const Copy& copy : copies) {
    writer_.run({.kernel = Kernel::copy, .unit = unit, .stream = stream}, {copy.from, copy.to},
                work_of_copy(copy.bytes, is_cuda_));
  }
  const int token = tokens_++;
  writer_.write(Record{token, stream});
  return token;
}

int HostSide::to_host(int unit, const Writer::Operand& from, const Writer::Operand& to, Bytes bytes) {
  const Copy copy{.from = from, .to = to, .bytes = bytes};
  return copy_all(Stream::to_host, std::span(&copy, 1), unit);
}

int HostSide::to_device(int unit, const Writer::Operand& from, const Writer::Operand& to, Bytes bytes) {
  const Copy copy{.from = from, .to = to, .bytes = bytes};
  return copy_all(Stream::to_device, std::span(&copy, 1), unit);
}

void HostSide::leave(Leaving leaving) {
  land();
  if (leaving.adds) landing_ = next_staging();
  const Writer::Operand to = leaving.adds ? Writer::viewed(landing_, How::write, leaving.view)
                                          : Writer::viewed(leaving.sum, How::write, leaving.view);
  landed_ = to_host(leaving.unit, Writer::viewed(leaving.shard, How::read, leaving.view), to, leaving.bytes);
  leaving_ = std::move(leaving);
}

void HostSide::land() {
  if (!leaving_) return;
  writer_.write(Wait{landed_, Stream::compute});
  if (leaving_->adds) {
    writer_.write(Wait{landed_, Stream::host});
    writer_.run(
        {.kernel = Kernel::add, .unit = leaving_->unit, .stream = Stream::host},
        {Writer::viewed(landing_, How::read, leaving_->view), Writer::viewed(leaving_->sum, How::add, leaving_->view)},
        Work{.bytes = 3 * static_cast<double>(leaving_->bytes.n)});
  }
  landing_.reset();
  leaving_.reset();
}

}  // namespace vramfit::program
