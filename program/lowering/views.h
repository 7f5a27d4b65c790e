// Views of buffers while a program is lowered: each list of them is kept once.
#pragma once

#include <initializer_list>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model_specs/graph.h"
#include "program/program.h"

namespace vramfit::program {

class Views {
 public:
  /// `are_kept` false: nobody will read them, and none is made.
  explicit Views(bool are_kept = true) : are_kept_(are_kept) {}
  bool are_kept() const { return are_kept_; }
  /// Of views that an access means together (View::parts is filled in); -1 for none, and where none are kept.
  int number(std::span<const View> list);
  int number(const View& view) { return number({&view, 1}); }
  std::vector<View> take() { return std::move(views_); }

 private:
  bool are_kept_;
  std::vector<View> views_;
  std::unordered_multimap<std::size_t, int> numbers_;  // by hash
};

/// A tensor of at most two dimensions, whole. Throws std::logic_error for more.
View whole_view(std::span<const std::int64_t> sizes, Dtype dtype);
/// What an op uses of a parameter of these sizes, which lies where the call says with its offset `base`: rows, or
/// columns of a matrix that is used `by_column`.
View used_view(std::span<const std::int64_t> sizes, const ParameterUse& use, bool by_column, Dtype dtype, int base);

}  // namespace vramfit::program
