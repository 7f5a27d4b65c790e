#include "estimator/allocator/free_blocks.h"

#include <algorithm>
#include <bit>

namespace vramfit {

namespace {

constexpr int kUnit = 9;                 // log2 of 512: every block is a multiple
constexpr std::size_t kFewEntries = 16;  // up to this many, linear search

std::size_t count_before(const std::vector<FreeBlocks::Entry>& entries, std::int64_t size, std::int64_t address) {
  const auto is_before = [&](const FreeBlocks::Entry& entry) {
    return entry.size < size || (entry.size == size && entry.address < address);
  };
  if (entries.size() > kFewEntries) {
    return static_cast<std::size_t>(std::ranges::partition_point(entries, is_before) - entries.begin());
  }
  std::size_t count = 0;
  while (count < entries.size() && is_before(entries[count])) ++count;
  return count;
}

}  // namespace

/// The exponent and the first bits of the mantissa, like a floating-point number.
std::size_t FreeBlocks::class_of(std::int64_t size) {
  const std::uint64_t units = std::min(static_cast<std::uint64_t>(size) >> kUnit, (std::uint64_t{1} << kMostUnits) - 1);
  if (units < (1U << kParts)) return static_cast<std::size_t>(units);
  const int shift = static_cast<int>(std::bit_width(units)) - 1 - kParts;
  return (static_cast<std::size_t>(shift) << kParts) + static_cast<std::size_t>(units >> static_cast<unsigned>(shift));
}

std::size_t FreeBlocks::filled_from(std::size_t first) const {
  std::size_t word = first / 64;
  if (word >= kWords) return kClasses;
  std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (first % 64));
  while (bits == 0) {
    if (++word == kWords) return kClasses;
    bits = filled_[word];
  }
  return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
}

FreeBlocks::Place FreeBlocks::next(Place place) const {
  if (place.index + 1 < classes_[place.size_class].size()) return {place.size_class, place.index + 1};
  return {filled_from(place.size_class + 1), 0};
}

FreeBlocks::Place FreeBlocks::previous(Place place) const {
  if (place.index > 0) return {place.size_class, place.index - 1};
  std::size_t size_class = place.size_class - 1;
  while (classes_[size_class].empty()) --size_class;
  return {size_class, classes_[size_class].size() - 1};
}

FreeBlocks::Place FreeBlocks::lower_bound(std::int64_t size, std::int64_t address) const {
  const std::size_t size_class = class_of(size);
  const std::size_t index = count_before(classes_[size_class], size, address);
  if (index < classes_[size_class].size()) return {size_class, index};
  return {filled_from(size_class + 1), 0};
}

void FreeBlocks::insert(const Entry& entry) {
  const std::size_t size_class = class_of(entry.size);
  std::vector<Entry>& entries = classes_[size_class];
  entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(count_before(entries, entry.size, entry.address)),
                 entry);
  filled_[size_class / 64] |= std::uint64_t{1} << (size_class % 64);
}

void FreeBlocks::erase(Place place) {
  std::vector<Entry>& entries = classes_[place.size_class];
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(place.index));
  if (entries.empty()) filled_[place.size_class / 64] &= ~(std::uint64_t{1} << (place.size_class % 64));
}

}  // namespace vramfit
