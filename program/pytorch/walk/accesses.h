// The accesses of one call: a list that has room for as many as most calls make, without memory of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "program/program.h"

namespace vramfit::eager {

class Accesses {
 public:
  Accesses() = default;
  Accesses(std::initializer_list<program::Access> list) { append(list); }

  void push_back(const program::Access& access) {
    if (count_ < few_.size()) {
      few_[count_] = access;
    } else {
      if (many_.empty()) many_.assign(few_.begin(), few_.end());
      many_.push_back(access);
    }
    ++count_;
  }
  /// What `list` has, behind what is there. It is no part of this one.
  template <typename List>
  void append(const List& list) {
    for (const program::Access& access : list) push_back(access);
  }
  const program::Access* begin() const { return many_.empty() ? few_.data() : many_.data(); }
  const program::Access* end() const { return begin() + count_; }
  const program::Access& front() const { return *begin(); }
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  static constexpr std::size_t kFew = 6;
  std::array<program::Access, kFew> few_;
  std::vector<program::Access> many_;  // all of them, where there are more
  std::size_t count_ = 0;
};

}  // namespace vramfit::eager
