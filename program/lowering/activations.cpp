#include "program/lowering/activations.h"

#include <algorithm>
#include <utility>

#include "base/numbers/index.h"
#include "program/stages/offload.h"

namespace vramfit::program {

namespace {

std::int64_t elements_of(const Buffer& buffer) { return buffer.bytes.n / dtype_bytes(buffer.dtype).n; }

}  // namespace

HostSide::Copy OffloadedActivations::copy_of(const Held& from, const Held& to) const {
  const Buffer& buffer = in_.writer.code().buffers[at(from.buffer())];
  const int view = in_.views.number(list_view(0, elements_of(buffer), buffer.dtype));
  return {
      .from = Writer::viewed(from, How::read, view), .to = Writer::viewed(to, How::write, view), .bytes = buffer.bytes};
}

std::vector<OffloadedActivations::Stored> OffloadedActivations::leaving_of(const HeldValues& values) const {
  const std::vector<Buffer>& buffers = in_.writer.code().buffers;
  std::vector<std::pair<int, Stored>> found;  // by buffer
  for (const auto& [value, held] : values.list()) {
    const auto known = std::ranges::find(found, held.buffer(), &std::pair<int, Stored>::first);
    if (known != found.end()) {
      known->second.values.push_back(value);
    } else {
      found.emplace_back(held.buffer(),
                         Stored{.on_card = buffers[at(held.buffer())], .on_host = {}, .values = {value}});
    }
  }
  std::vector<Stored> leaving;
  for (auto& [buffer, stored] : found) {
    const bool is_shared = in_.writer.owners(buffer) > static_cast<int>(stored.values.size());
    if (!is_shared && is_worth_a_copy(stored.on_card.bytes, stored.on_card.dtype)) leaving.push_back(std::move(stored));
  }
  return leaving;
}

void OffloadedActivations::land() {
  if (!leaving_) return;
  in_.writer.write(Wait{leaving_->token, Stream::compute});
  leaving_.reset();
}

void OffloadedActivations::after_forward(int segment, HeldValues& values) {
  land();
  if (!in_.leaves[at(segment)]) return;
  OfSegment& of = stored_[at(segment)];
  const bool is_first = of.list.empty();
  std::vector<Stored> leaving = leaving_of(values);
  if (is_first) of.list = std::move(leaving);
  if (of.list.empty()) return;
  Leaving now;
  std::vector<HostSide::Copy> copies;
  for (Stored& stored : of.list) {
    if (is_first) {
      Buffer waiting = in_.host.on_host(stored.on_card);
      stored.on_host = in_.writer.declare(waiting);
    }
    now.on_card.push_back(values.of(stored.values.front()));
    copies.push_back(copy_of(now.on_card.back(), stored.on_host));
    for (const int value : stored.values) values.set(value, {});
  }
  now.token = in_.host.copy_all(Stream::to_host, copies);
  leaving_ = std::move(now);
  of.is_out = true;
}

void OffloadedActivations::fetch(int segment) {
  if (segment < 0 || !stored_[at(segment)].is_out || (coming_ && coming_->segment == segment)) return;
  Coming now{.segment = segment, .on_card = {}, .token = -1};
  std::vector<HostSide::Copy> copies;
  for (const Stored& stored : stored_[at(segment)].list) {
    now.on_card.push_back(in_.writer.allocate(stored.on_card));
    copies.push_back(copy_of(stored.on_host, now.on_card.back()));
  }
  now.token = in_.host.copy_all(Stream::to_device, copies);
  coming_ = std::move(now);
}

void OffloadedActivations::before_backward(int segment, HeldValues& values) {
  fetch(segment);
  OfSegment& of = stored_[at(segment)];
  if (of.is_out) {
    in_.writer.write(Wait{coming_->token, Stream::compute});
    for (std::size_t i = 0; i < of.list.size(); ++i) {
      for (const int value : of.list[i].values) values.set(value, coming_->on_card[i]);
    }
    coming_.reset();
    of.is_out = false;
  }
  if (in_.graph.segments[at(segment)].role == SegmentRole::block) fetch(segment - 1);
}

std::vector<int> OffloadedActivations::host_buffers() const {
  std::vector<int> buffers;
  for (const OfSegment& of : stored_) {
    for (const Stored& stored : of.list) buffers.push_back(stored.on_host.buffer());
  }
  return buffers;
}

}  // namespace vramfit::program
