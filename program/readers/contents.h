// What the check knows of what a buffer holds: which values, which parts were written, which gradients nothing has
// read.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/program.h"

namespace vramfit::program {

/// The values that a buffer holds: one, or several that are equal. Whoever writes without saying what leaves unknown
/// ones.
class Contents {
 public:
  static constexpr int kUnknown = -1;

  void set(int value) {
    values_.front() = value;
    count_ = 1;
  }
  void add(int value) {
    if (value == kUnknown || holds_unknown() || count_ == values_.size()) return set(kUnknown);
    values_[count_++] = value;
  }
  bool may_hold(int value) const {
    return value == kUnknown || holds_unknown() || std::find(values_.begin(), end(), value) != end();
  }

 private:
  bool holds_unknown() const { return values_.front() == kUnknown; }
  std::array<int, 4>::const_iterator end() const { return values_.begin() + static_cast<std::ptrdiff_t>(count_); }

  std::array<int, 4> values_{kUnknown};
  std::size_t count_ = 1;
};

/// A part of a buffer, in elements.
struct Part {
  std::int64_t base = 0;  // where the parameter begins of which it is a view
  View view;              // View::base and parts don't count

  std::int64_t begin() const { return base + view.offset; }
  std::int64_t end() const { return begin() + reach(view); }
  bool has_gaps() const { return view.columns > 0 && view.rows > 1 && view.pitch != view.columns; }
  bool is_empty() const { return view.rows == 0; }
  bool operator==(const Part& other) const = default;

  /// Whether they surely have an element in common. Of parts with gaps that is known where they belong to one matrix.
  bool overlaps(const Part& other) const {
    if (is_empty() || other.is_empty() || end() <= other.begin() || other.end() <= begin()) return false;
    if (!has_gaps() && !other.has_gaps()) return true;
    const std::int64_t pitch = view.pitch;
    if (base != other.base || pitch != other.view.pitch) return false;
    const auto meet = [](std::int64_t a, std::int64_t a_count, std::int64_t b, std::int64_t b_count) {
      return a < b + b_count && b < a + a_count;
    };
    const View &a = view, &b = other.view;
    return meet(a.offset / pitch, a.rows, b.offset / pitch, b.rows) &&
           meet(a.offset % pitch, a.columns, b.offset % pitch, b.columns);
  }
};

/// Elements of a buffer that were written since it was allocated.
class Written {
 public:
  bool any() const { return any_; }
  /// Of a part with gaps nothing is noted: what it leaves out may hold nothing.
  void add(const Part& part) {
    any_ = true;
    if (part.has_gaps() || part.is_empty()) return;
    std::int64_t begin = part.begin(), end = part.end();
    std::erase_if(parts_, [&](const auto& known) {
      if (known.second < begin || end < known.first) return false;
      begin = std::min(begin, known.first);
      end = std::max(end, known.second);
      return true;
    });
    parts_.emplace_back(begin, end);
  }
  /// What it is is not told, so nothing may be read yet.
  void add_unknown_part() {
    any_ = true;
    parts_.clear();
  }
  bool has(const Part& part) const {
    return part.is_empty() || std::ranges::any_of(parts_, [&](const auto& known) {
             return known.first <= part.begin() && part.end() <= known.second;
           });
  }

 private:
  bool any_ = false;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts_;  // begin and end, none next to another
};

/// Contributions to a gradient since it was last read.
class Unread {
 public:
  bool has(const Part& part) const {
    return std::ranges::any_of(parts_, [&](const Part& known) { return known.overlaps(part); });
  }
  void add(const Part& part) {
    if (std::ranges::find(parts_, part) == parts_.end()) parts_.push_back(part);
  }
  void clear() { parts_.clear(); }
  bool any() const { return !parts_.empty(); }

 private:
  std::vector<Part> parts_;
};

}  // namespace vramfit::program
