#include "program/lowering/views.h"

#include <algorithm>
#include <stdexcept>

#include "base/numbers/mix_bits.h"

namespace vramfit::program {

namespace {

std::size_t hash_of(std::span<const View> list) {
  std::uint64_t hash = list.size();
  for (const View& view : list) {
    const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
    hash = mix_bits(hash, number(view.offset) ^ (number(view.rows) << 32U) ^ (number(view.columns) << 48U));
    hash = mix_bits(hash, number(view.pitch) ^ (number(view.base + 1) << 40U) ^ (number(view.dtype) << 56U));
  }
  return hash;
}

}  // namespace

int Views::number(std::span<const View> list) {
  if (!are_kept_ || list.empty()) return -1;
  const std::size_t hash = hash_of(list);
  const auto is_known = [&](int first) {
    const auto known = views_.begin() + first;
    return known->parts == static_cast<int>(list.size()) &&
           std::ranges::equal(std::span(&*known, list.size()), list, [](View a, View b) {
             a.parts = b.parts = 1;
             return a == b;
           });
  };
  const auto [begin, end] = numbers_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    if (is_known(entry->second)) return entry->second;
  }
  const int first = static_cast<int>(views_.size());
  numbers_.emplace(hash, first);
  for (std::size_t i = 0; i < list.size(); ++i) {
    views_.push_back(list[i]);
    views_.back().parts = static_cast<int>(list.size() - i);
  }
  return first;
}

View whole_view(std::span<const std::int64_t> sizes, Dtype dtype) {
  if (sizes.size() > 2) throw std::logic_error("a tensor of more than two dimensions");
  const std::int64_t rows = sizes.empty() ? 1 : sizes[0], columns = sizes.size() == 2 ? sizes[1] : 0;
  return {.rows = rows, .columns = columns, .pitch = columns, .dtype = dtype};
}

View used_view(std::span<const std::int64_t> sizes, const ParameterUse& use, bool by_column, Dtype dtype, int base) {
  View view = whole_view(sizes, dtype);
  view.base = base;
  if (use.count < 0) return view;
  if (by_column && sizes.size() == 2) {
    view.offset = use.first;
    view.columns = use.count;
  } else {
    view.offset = use.first * std::max<std::int64_t>(1, view.pitch);
    view.rows = use.count;
  }
  return view;
}

}  // namespace vramfit::program
