#include "program/pytorch/walk/heap.h"

#include <algorithm>
#include <utility>

#include "base/text/units.h"
#include "program/lowering/lower.h"
#include "program/readers/host_bytes.h"

namespace vramfit::eager {

Tensor detached(const Tensor& tensor) {
  Tensor copy = tensor;
  copy.made_by.reset();
  return copy;
}

Tensor Heap::make(std::int64_t elements, Dtype dtype, Category category, std::string_view what, Stream stream) {
  return stored(elements, dtype,
                {.bytes = elements * dtype_bytes(dtype), .category = category, .stream = at(stream), .dtype = dtype},
                what);
}

Tensor Heap::narrow(const Tensor& flat, std::int64_t first, std::int64_t elements) {
  std::vector<program::View>& views = recording_.views;
  if (flat.part >= 0) first = checked_add(views[static_cast<std::size_t>(flat.part)].offset, first);
  const auto [known, is_new] = parts_.try_emplace({first, elements, flat.dtype}, static_cast<int>(views.size()));
  if (is_new) views.push_back(program::list_view(first, elements, flat.dtype));
  Tensor part = detached(flat);
  part.elements = elements;
  part.part = known->second;
  return part;
}

Tensor Heap::make_managed(std::int64_t elements, Dtype dtype, Category category, std::string_view what) {
  return stored(elements, dtype,
                {.bytes = elements * dtype_bytes(dtype), .category = category, .space = program::Space::managed}, what);
}

Tensor Heap::make_pinned(std::int64_t elements, Dtype dtype, Category category, std::string_view what) {
  const Bytes bytes = pinned_by_pool(elements * dtype_bytes(dtype));
  return stored(
      elements, dtype,
      {.bytes = bytes, .category = category, .stream = Stream::host, .dtype = dtype, .space = program::Space::pinned},
      what);
}

Tensor Heap::make_on_host(std::int64_t elements, Dtype dtype, Category category, std::string_view what) {
  const Bytes bytes = elements * dtype_bytes(dtype);
  return stored(
      elements, dtype,
      {.bytes = bytes, .category = category, .stream = Stream::host, .dtype = dtype, .space = program::Space::host},
      what);
}

Tensor Heap::stored(std::int64_t elements, Dtype dtype, program::Buffer buffer, std::string_view what) {
  Tensor tensor{.storage = {}, .elements = elements, .dtype = dtype, .made_by = nullptr};
  if (buffer.bytes.n == 0) return tensor;
  buffer.label = recording_.labels.number({scope, ": ", what});
  const auto label = static_cast<std::size_t>(buffer.label);
  if (buffers_.size() <= label) buffers_.resize(label + 1);
  program::Writer& writer = recording_.writer;
  const int found = free_one(buffers_[label], buffer);
  tensor.storage = found >= 0 ? program::Held(writer, found) : writer.declare(buffer);
  if (found < 0) buffers_[label].buffers.push_back(tensor.storage.buffer());
  writer.allocate(tensor.storage);
  keep_below_limit();
  return tensor;
}

int Heap::free_one(Labelled& among, const program::Buffer& wanted) const {
  program::Writer& writer = recording_.writer;
  if (among.all_held == writer.times_let_go()) return -1;
  bool all_held = true;
  for (const int number : among.buffers) {
    if (writer.owners(number) > 0) continue;
    all_held = false;
    const program::Buffer& known = writer.code().buffers[static_cast<std::size_t>(number)];
    if (known.bytes == wanted.bytes && known.category == wanted.category && known.stream == wanted.stream &&
        known.space == wanted.space && known.dtype == wanted.dtype) {
      return number;
    }
  }
  if (all_held) among.all_held = writer.times_let_go();
  return -1;
}

void Heap::keep_below_limit() {
  if (!recording_.reserves_below) return;
  recording_.reserved.add_new(recording_.writer.code());
  if (recording_.reserved.peak() >= *recording_.reserves_below) throw program::ReservesTooMuch{};
}

void Heap::keep(Tensor tensor) {
  program::Writer& writer = recording_.writer;
  writer.write(program::Keep{tensor.storage.buffer()});
  writer.be_quiet(true);
  tensor.storage.reset();
  writer.be_quiet(false);
}

program::Range Heap::range_of(const Accesses& accesses) {
  std::vector<program::Access>& all = recording_.writer.code().accesses;
  program::Range range{static_cast<std::uint32_t>(all.size()), 0};
  std::ranges::copy_if(accesses, std::back_inserter(all), [](const program::Access& a) { return a.buffer >= 0; });
  range.count = static_cast<std::uint32_t>(all.size()) - range.first;
  return range;
}

double Heap::bytes_of(const Accesses& accesses) const {
  double bytes = 0;
  if (!recording_.calls) return bytes;
  for (const program::Access& access : accesses) {
    if (access.buffer < 0) continue;
    bytes += static_cast<double>(size_of(access).n) * (access.how == program::How::add ? 2 : 1);
  }
  return bytes;
}

Bytes Heap::size_of(const program::Access& access) const {
  const program::Buffer& buffer = recording_.writer.code().buffers[static_cast<std::size_t>(access.buffer)];
  if (access.view < 0) return buffer.bytes;
  return recording_.views[static_cast<std::size_t>(access.view)].rows * dtype_bytes(buffer.dtype);
}

void Heap::run(std::string_view name, const Accesses& accesses, Stream stream) {
  if (recording_.calls) run(name, accesses, {.bytes = bytes_of(accesses)}, stream);
}

void Heap::run(std::string_view name, const Accesses& accesses, const Work& work, Stream stream) {
  if (!recording_.calls) return;
  std::vector<Work>& all = recording_.writer.code().work;
  all.push_back(work);
  recording_.writer.write(program::Run{.kernel = program::Kernel::call,
                                       .op = recording_.labels.have_texts() ? recording_.labels.number(name) : -1,
                                       .accesses = range_of(accesses),
                                       .inside = {},
                                       .work = {static_cast<std::uint32_t>(all.size() - 1), 1},
                                       .stream = at(stream)});
}

bool Heap::is_pageable(const Tensor& tensor) const {
  if (!tensor.storage) return false;  // of no elements
  const auto buffer = static_cast<std::size_t>(tensor.storage.buffer());
  return recording_.writer.code().buffers[buffer].space == program::Space::host;
}

void Heap::stage(const Tensor& pageable) {
  // One side is read, the other written, which reads its cache lines first.
  constexpr double kMovedOfEach = 3;
  run("cudaMemcpyAsync", {reads(pageable)}, {.bytes = kMovedOfEach * bytes_in(pageable)}, Stream::host);
}

void Heap::copy_over_link(const Tensor& from, const Tensor& to, Stream stream) {
  if (!recording_.calls) return;
  if (is_pageable(from)) {
    wait_for_stream(Stream::host, stream);
    stage(from);
  }
  if (is_pageable(from) || is_pageable(to)) wait_for_stream(stream, Stream::host);
  const Bytes bytes = to.elements * dtype_bytes(to.dtype);
  std::vector<Work>& all = recording_.writer.code().work;
  all.push_back({.unit = Work::Unit::host_link, .bytes = static_cast<double>(bytes.n)});
  recording_.writer.write(program::Run{.kernel = program::Kernel::copy,
                                       .accesses = range_of({reads(from), writes(to)}),
                                       .inside = {},
                                       .work = {static_cast<std::uint32_t>(all.size() - 1), 1},
                                       .stream = stream});
  if (is_pageable(to)) {
    wait_for_stream(Stream::host, stream);
    stage(to);
  }
}

int Heap::start(program::Collective collective, program::Axis axis, const Accesses& accesses, Stream stream,
                Bytes part) {
  if (!recording_.calls) return recording_.tokens++;
  const Bytes bytes = size_of(accesses.front());
  recording_.writer.write(program::Start{.collective = collective,
                                         .axis = axis,
                                         .accesses = range_of(accesses),
                                         .bytes = bytes,
                                         .token = recording_.tokens,
                                         .stream = stream,
                                         .part = part.n == 0 ? bytes : part});
  return recording_.tokens++;
}

int Heap::record(Stream stream) {
  if (recording_.calls) recording_.writer.write(program::Record{recording_.tokens, stream});
  return recording_.tokens++;
}

void Heap::wait(int token, Stream stream) {
  if (recording_.calls) recording_.writer.write(program::Wait{token, stream});
}

}  // namespace vramfit::eager
