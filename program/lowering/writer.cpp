#include "program/lowering/writer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace vramfit::program {

namespace {

template <typename T, typename List>
inline Range append(std::vector<T>& all, const List& list) {
  const Range range{static_cast<std::uint32_t>(all.size()), static_cast<std::uint32_t>(list.size())};
  for (const T& each : list) all.push_back(each);
  return range;
}

/// Of `text`, after what `hash` is the hash of. Several bytes at once, in the order that they have in memory.
std::uint64_t hash_with(std::uint64_t hash, std::string_view text) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  constexpr unsigned kHalf = 32, kByte = 8;
  const auto add = [&](std::uint64_t word) {
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> kHalf;
  };
  const char* from = text.data();
  std::size_t left = text.size();
  add(left);
  for (std::uint64_t word = 0; left >= sizeof word; from += sizeof word, left -= sizeof word) {
    std::memcpy(&word, from, sizeof word);
    add(word);
  }
  if (std::uint32_t first = 0, last = 0; left >= sizeof first) {  // perhaps some bytes twice
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&last, from + left - sizeof last, sizeof last);
    add(std::uint64_t{first} << kHalf | last);
  } else if (left > 0) {
    const auto byte = [&](std::size_t place) { return std::uint64_t{static_cast<unsigned char>(from[place])}; };
    add(byte(0) | byte(left / 2) << kByte | byte(left - 1) << 2 * kByte);
  }
  return hash;
}

}  // namespace

std::size_t Labels::place_of(std::size_t hash, std::string_view text) const {
  const std::size_t last = places_.size() - 1;
  for (std::size_t place = hash & last;; place = (place + 1) & last) {
    const Place& there = places_[place];
    if (there.number < 0) return place;
    if (there.hash != hash) continue;
    if (kept_ == Kept::numbers || texts_[static_cast<std::size_t>(there.number)] == text) return place;
  }
}

void Labels::grow() {
  const std::vector<Place> before =
      std::exchange(places_, std::vector<Place>(std::max<std::size_t>(64, 2 * places_.size())));
  const std::size_t last = places_.size() - 1;
  for (const Place& each : before) {
    if (each.number < 0) continue;
    std::size_t place = each.hash & last;
    while (places_[place].number >= 0) place = (place + 1) & last;
    places_[place] = each;
  }
}

int Labels::number_of(std::initializer_list<std::string_view> parts) {
  std::uint64_t hash = 0;
  if (have_texts()) {
    text_.clear();
    for (const std::string_view part : parts) text_.append(part);
    hash = hash_with(0, text_);
  } else {  // equal labels are always made of the same parts, so a hash of the parts tells them apart
    for (const std::string_view part : parts) hash = hash_with(hash, part);
  }
  if (2 * texts_.size() >= places_.size()) grow();
  Place& place = places_[place_of(hash, text_)];
  if (place.number < 0) {
    place = {.hash = hash, .number = static_cast<int>(texts_.size())};
    if (have_texts()) {
      texts_.push_back(text_);
    } else {
      texts_.emplace_back();
    }
  }
  return place.number;
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

void Writer::run(const Run& run, Listed list) {
  if (!calls_) return this->run(run, list, std::span<const Work>());
  double bytes = 0;
  for (const Operand& operand : list) {
    if (operand.buffer >= 0) bytes += (operand.how == How::add ? 2.0 : 1.0) * bytes_of(operand.buffer);
  }
  this->run(run, list, Work{.bytes = bytes});
}

void Writer::run(const Run& run, Listed list, std::span<const Work> work) {
  if (!calls_) {
    if (run.inside.count > 0) write(Run{.inside = run.inside, .times = run.times});
    return;
  }
  Run& written = write(run);
  written.accesses = append(code_.accesses, list);
  written.work = append(code_.work, work);
}

void Writer::start(Start start, Listed operands) {
  if (!calls_) return;
  if (start.bytes.n == 0) {
    for (const Operand& operand : operands) {
      start.bytes += code_.buffers[static_cast<std::size_t>(operand.buffer)].bytes;
    }
    start.part = start.bytes;
  }
  start.accesses = append(code_.accesses, operands);
  write(start);
}

bool Writer::is_held_as(std::span<const int> owners_before) const {
  const std::span<const int> now = owners_;
  return std::ranges::equal(now.first(owners_before.size()), owners_before) &&
         std::ranges::all_of(now.subspan(owners_before.size()), [](int owners) { return owners == 0; });
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
