#include "program/lowering/writer.h"

namespace vramfit::program {

int Labels::number(const std::string& text) {
  const auto [entry, is_new] = numbers_.try_emplace(text, static_cast<int>(texts_.size()));
  if (is_new) texts_.push_back(text);
  return entry->second;
}

Held::Held(Writer& writer, int buffer) : writer_(&writer), buffer_(buffer) { writer.share(buffer); }

Held& Held::operator=(const Held& other) {
  if (other.writer_ != nullptr) other.writer_->share(other.buffer_);
  reset();
  writer_ = other.writer_;
  buffer_ = other.buffer_;
  return *this;
}

Held& Held::operator=(Held&& other) noexcept {
  if (this == &other) return *this;
  reset();
  writer_ = std::exchange(other.writer_, nullptr);
  buffer_ = std::exchange(other.buffer_, -1);
  return *this;
}

void Held::reset() noexcept {
  if (writer_ != nullptr) writer_->drop(buffer_);
  writer_ = nullptr;
  buffer_ = -1;
}

Held Writer::declare(const Buffer& buffer) {
  code_.buffers.push_back(buffer);
  owners_.push_back(0);
  return {*this, static_cast<int>(code_.buffers.size()) - 1};
}

Held Writer::allocate(const Buffer& buffer) {
  if (buffer.bytes.n == 0) return {};
  Held held = declare(buffer);
  allocate(held);
  return held;
}

void Writer::allocate(const Held& declared) {
  if (inside_) {
    code_.inside.push_back({Inside::What::allocate, declared.buffer()});
  } else {
    write(Allocate{declared.buffer()});
  }
}

void Writer::drop(int buffer) noexcept {
  if (--owners_[static_cast<std::size_t>(buffer)] > 0 || quiet_) return;
  if (inside_) {
    code_.inside.push_back({Inside::What::free, buffer});
  } else {
    write(Free{buffer});
  }
}

Range Writer::accesses(const Operands& list) {
  const Range range{static_cast<std::uint32_t>(code_.accesses.size()), static_cast<std::uint32_t>(list.size())};
  for (const auto& [held, how] : list) code_.accesses.push_back({held == nullptr ? -1 : held->buffer(), how});
  return range;
}

void Writer::run(const Run& run, const Operands& list) {
  double bytes = 0;
  for (const auto& [held, how] : list) {
    if (held != nullptr && *held) bytes += (how == How::add ? 2.0 : 1.0) * bytes_of(held->buffer());
  }
  this->run(run, list, Work{.bytes = bytes});
}

void Writer::run(Run run, const Operands& list, std::span<const Work> work) {
  run.accesses = accesses(list);
  run.work = this->work(work);
  write(run);
}

Range Writer::work(std::span<const Work> list) {
  const Range range{static_cast<std::uint32_t>(code_.work.size()), static_cast<std::uint32_t>(list.size())};
  code_.work.insert(code_.work.end(), list.begin(), list.end());
  return range;
}

void Writer::start(Start start, const Operands& operands) {
  for (const auto& [held, how] : operands) start.bytes += code_.buffers[static_cast<std::size_t>(held->buffer())].bytes;
  start.accesses = accesses(operands);
  write(start);
}

double Writer::bytes_of(int buffer) const {
  return static_cast<double>(code_.buffers[static_cast<std::size_t>(buffer)].bytes.n);
}

void Writer::begin_inside() {
  inside_ = true;
  inside_begin_ = static_cast<std::uint32_t>(code_.inside.size());
}

Range Writer::end_inside() {
  inside_ = false;
  return {inside_begin_, static_cast<std::uint32_t>(code_.inside.size()) - inside_begin_};
}

}  // namespace vramfit::program
