#include "program/lowering/writer.h"

namespace vramfit::program {

int Labels::number(std::initializer_list<std::string_view> parts) {
  if (!are_kept_) return -1;
  text_.clear();
  for (const std::string_view part : parts) text_.append(part);
  const auto [entry, is_new] = numbers_.try_emplace(text_, static_cast<int>(texts_.size()));
  if (is_new) texts_.push_back(text_);
  return entry->second;
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

void Writer::write_free(int buffer) noexcept {
  if (inside_) {
    code_.inside.push_back({Inside::What::free, buffer});
  } else {
    write(Free{buffer});
  }
}

Range Writer::accesses(Listed list) {
  const Range range{static_cast<std::uint32_t>(code_.accesses.size()), static_cast<std::uint32_t>(list.size())};
  for (const Operand& operand : list) {
    const int buffer = operand.held == nullptr ? -1 : operand.held->buffer();
    code_.accesses.push_back({buffer, operand.how, operand.value, buffer < 0 ? -1 : operand.view});
  }
  return range;
}

void Writer::run(const Run& run, Listed list) {
  double bytes = 0;
  for (const Operand& operand : list) {
    if (operand.held == nullptr || !*operand.held) continue;
    bytes += (operand.how == How::add ? 2.0 : 1.0) * bytes_of(operand.held->buffer());
  }
  this->run(run, list, Work{.bytes = bytes});
}

void Writer::run(Run run, Listed list, std::span<const Work> work) {
  run.accesses = accesses(list);
  run.work = this->work(work);
  write(run);
}

Range Writer::work(std::span<const Work> list) {
  const Range range{static_cast<std::uint32_t>(code_.work.size()), static_cast<std::uint32_t>(list.size())};
  code_.work.insert(code_.work.end(), list.begin(), list.end());
  return range;
}

void Writer::start(Start start, Listed operands) {
  if (start.bytes.n == 0) {
    for (const Operand& operand : operands) {
      start.bytes += code_.buffers[static_cast<std::size_t>(operand.held->buffer())].bytes;
    }
    start.part = start.bytes;
  }
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
