// Values for results that nobody can compute, each by a named assumption. docs/values.md lists them.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "phantom/values/compute_torch.h"

namespace vramfit::values {

// Above, a choice among so many is one of a vocabulary: a token, not an expert.
inline constexpr std::int64_t kMostExperts = 1024;

/// Any integral or boolean tensor of the card that is small enough, from a function of the element's number.
template <typename F>
bool set_integers(const at::Tensor& t, std::int64_t assumption, const F& f) {
  if (!is_integral(t) || bytes_of(t) > settings().integer_bytes) return false;
  const std::optional<at::Tensor> view = host_view(t);
  if (!view) return false;
  const at::Tensor values = at::detail::empty_cpu(t.sizes(), at::kLong);
  auto* const data = static_cast<std::int64_t*>(values.mutable_data_ptr());
  for (std::int64_t n = 0; n < t.numel(); ++n) data[n] = f(n);
  at::Tensor target = *view;
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), target, values, false);
  set_known(t, assumption);
  return true;
}

inline std::uint64_t mixed(std::uint64_t x) {  // splitmix64, https://prng.di.unimi.it/splitmix64.c
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// A token of the vocabulary's second quarter: special tokens, such as the one that ends a text, lie at its ends.
inline std::int64_t token(std::int64_t vocabulary) {
  static std::atomic<std::uint64_t> drawn{0};
  const std::int64_t first = vocabulary / 4, count = std::max<std::int64_t>(1, vocabulary / 4);
  return first + static_cast<std::int64_t>(mixed(drawn++) % static_cast<std::uint64_t>(count));
}

/// Element n of a mask in which a share is true, evenly spread.
inline bool is_selected(std::int64_t n) {
  const double share = settings().selected_share;
  return std::floor(static_cast<double>(n + 1) * share) > std::floor(static_cast<double>(n) * share);
}

struct Unknown {
  const OperatorFacts& facts;
  const std::vector<c10::IValue>& arguments;
  const Tensors& results;  // of the card; written arguments first
};

/// The dimension that an operator chooses along; the last if it doesn't say.
inline std::int64_t dim_of(const Unknown& unknown) {
  const std::int64_t count = unknown.arguments[0].toTensor().dim();
  const std::ptrdiff_t at = unknown.facts.dim;
  const bool says = at >= 0 && unknown.arguments[static_cast<std::size_t>(at)].isInt();
  const std::int64_t dim = says ? unknown.arguments[static_cast<std::size_t>(at)].toInt() : -1;
  return dim < 0 ? dim + count : dim;
}

inline std::int64_t choices(const Unknown& unknown) {
  const at::Tensor& scores = unknown.arguments[0].toTensor();
  return scores.dim() == 0 ? 1 : std::max<std::int64_t>(1, scores.size(dim_of(unknown)));
}

/// A number of the layer that routes: the same for its recomputation and for all ranks. Set by install.
using LayerOf = std::int64_t (*)();

inline LayerOf& layer_of() {
  static LayerOf kLayerOf = nullptr;
  return kLayerOf;
}

inline bool draws_routing(std::int64_t entries) { return settings().routing_seed >= 0 && entries <= kMostExperts; }

/// For each row, `chosen` of the entries, drawn evenly by the seed, the layer and the row.
class Drawn {
 public:
  Drawn(std::int64_t entries, std::int64_t chosen)
      : entries_(entries), chosen_(chosen), layer_(layer_of() == nullptr ? 0 : layer_of()()) {}

  std::int64_t entry(std::int64_t row, std::int64_t place) {
    if (row != row_) draw(row);
    return order_[static_cast<std::size_t>(place)].second;
  }

 private:
  void draw(std::int64_t row) {
    row_ = row;
    const auto seed = static_cast<std::uint64_t>(settings().routing_seed), layer = static_cast<std::uint64_t>(layer_);
    const std::uint64_t of_row = mixed(mixed(mixed(seed) + layer) + static_cast<std::uint64_t>(row));
    order_.clear();
    for (std::int64_t n = 0; n < entries_; ++n) order_.emplace_back(mixed(of_row + static_cast<std::uint64_t>(n)), n);
    std::partial_sort(order_.begin(), order_.begin() + chosen_, order_.end());
  }

  std::int64_t entries_, chosen_, layer_, row_ = -1;
  std::vector<std::pair<std::uint64_t, std::int64_t>> order_;
};

/// topk, sort: entry j of row r is number r * k + j, round and round, or j if all rows choose the same.
inline bool assume_ranking(const Unknown& unknown) {
  const at::Tensor& indices = unknown.results.back();
  if (indices.dim() == 0 || indices.numel() == 0) return false;
  const std::int64_t dim = dim_of(unknown), entries = choices(unknown), chosen = indices.size(dim);
  std::int64_t inner = 1;  // elements that lie between neighbours along the dimension
  for (std::int64_t d = dim + 1; d < indices.dim(); ++d) inner *= indices.size(d);
  const auto drawn = draws_routing(entries) ? std::make_shared<Drawn>(entries, chosen) : nullptr;
  return set_integers(indices, VRAMFIT_ASSUMES_ROUTING, [=](std::int64_t n) {
    const std::int64_t entry = n / inner % chosen, row = n / (inner * chosen) * inner + n % inner;
    if (drawn != nullptr) return drawn->entry(row, entry);
    return settings().worst_routing != 0 ? entry : (row * chosen + entry) % entries;
  });
}

inline bool assume_choice(const Unknown& unknown) {
  const std::int64_t entries = choices(unknown);
  if (entries > kMostExperts) {
    return set_integers(unknown.results.back(), VRAMFIT_ASSUMES_SAMPLED, [=](std::int64_t) { return token(entries); });
  }
  const auto drawn = draws_routing(entries) ? std::make_shared<Drawn>(entries, 1) : nullptr;
  return set_integers(unknown.results.back(), VRAMFIT_ASSUMES_ROUTING, [=](std::int64_t n) {
    if (drawn != nullptr) return drawn->entry(n, 0);
    return settings().worst_routing != 0 ? 0 : n % entries;
  });
}

inline bool assume_sample(const Unknown& unknown) {
  const std::int64_t entries = choices(unknown);
  return set_integers(unknown.results[0], VRAMFIT_ASSUMES_SAMPLED, [=](std::int64_t) { return token(entries); });
}

inline bool is_infinite(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().isFloatingPoint() && std::isinf(value.toScalar().toDouble());
}

/// isnan(x), x != x, |x| == inf and the like.
inline bool asks_if_finite(const std::string& base, const std::vector<c10::IValue>& arguments) {
  if (base == "isnan" || base == "isposinf" || base == "isneginf") return true;
  if ((base != "eq" && base != "ne") || arguments.size() < 2) return false;
  const c10::IValue& right = arguments[1];
  return is_infinite(right) || (right.isTensor() && right.toTensor().is_same(arguments[0].toTensor()));
}

/// x == x is how programs ask for nan, and |x| == inf for inf. Two unknown floating numbers are not equal otherwise.
inline bool assume_equality(const Unknown& unknown) {
  const at::Tensor& left = unknown.arguments[0].toTensor();
  const c10::IValue& right = unknown.arguments[1];
  const bool same = right.isTensor() && right.toTensor().is_same(left);
  const bool about_finite = asks_if_finite(unknown.facts.base, unknown.arguments);
  const bool is_equal = same || (!about_finite && is_integral(left));
  const bool result = is_equal == (unknown.facts.base == "eq");
  return set_integers(unknown.results[0], about_finite ? VRAMFIT_ASSUMES_FINITE : VRAMFIT_ASSUMES_SELECTION,
                      [=](std::int64_t n) { return result && (about_finite || is_selected(n)); });
}

/// `left` compared by the operator of that name: lt, le, gt or ge.
inline bool compares(const std::string& base, double left, double right) {
  if (base == "lt") return left < right;
  if (base == "le") return left <= right;
  return base == "gt" ? left > right : left >= right;
}

/// What the host would read of an unknown number.
inline float read_as(const at::Tensor& t) { return is_integral(t) ? 1.0F : 0.5F; }

/// Masks select. A number, such as a norm, is no mask: compared with a known one it is what the host would read of it,
/// so that `if norm < 0` and `if norm.item() < 0` go the same way.
inline bool assume_comparison(const Unknown& unknown) {
  const at::Tensor& left = unknown.arguments[0].toTensor();
  const c10::IValue& right = unknown.arguments[1];
  if (left.dim() == 0 && right.isScalar() && !right.toScalar().isComplex()) {
    const bool result = compares(unknown.facts.base, read_as(left), right.toScalar().toDouble());
    return set_integers(unknown.results[0], VRAMFIT_ASSUMES_VALUE, [=](std::int64_t) { return result; });
  }
  return set_integers(unknown.results[0], VRAMFIT_ASSUMES_SELECTION, is_selected);
}

inline bool assume_finite(const Unknown& unknown) {
  return set_integers(unknown.results[0], VRAMFIT_ASSUMES_FINITE, [](std::int64_t) { return 0; });
}

/// Of a mask that is too large to be known: tests are for what should not happen, so all pass and none fails.
inline bool assume_all(const Unknown& unknown) {
  const std::int64_t value = unknown.facts.base == "all" ? 1 : 0;
  return set_integers(unknown.results[0], VRAMFIT_ASSUMES_FINITE, [=](std::int64_t) { return value; });
}

/// Whole numbers that are made of unknown floating ones, as predicted lengths are: each is what the host would read of
/// it, so that a sum of them is right too. Smaller types are quantized weights as a rule.
inline bool assume_conversion(const Unknown& unknown) {
  const at::Tensor& to = unknown.results[0];
  const at::Tensor& from = unknown.arguments[1].toTensor();
  if (is_integral(from) || !is_on_card(from)) return false;
  if (to.scalar_type() == at::kBool) return set_integers(to, VRAMFIT_ASSUMES_SELECTION, is_selected);
  if (to.scalar_type() != at::kLong && to.scalar_type() != at::kInt) return false;
  return set_integers(to, VRAMFIT_ASSUMES_VALUE, [](std::int64_t) { return 1; });
}

/// Fills in what an operator made of unknown values. False where the assumption doesn't fit: the result is unknown.
using Rule = bool (*)(const Unknown&);

/// By an operator's base name; null: its results are unknown.
inline Rule rule_of(const std::string& base) {
  static const std::unordered_map<std::string, Rule> kRules{
      {"topk", assume_ranking},  {"sort", assume_ranking},       {"argmax", assume_choice},   {"argmin", assume_choice},
      {"max", assume_choice},    {"min", assume_choice},         {"eq", assume_equality},     {"ne", assume_equality},
      {"lt", assume_comparison}, {"le", assume_comparison},      {"gt", assume_comparison},   {"ge", assume_comparison},
      {"isnan", assume_finite},  {"isposinf", assume_finite},    {"isneginf", assume_finite}, {"all", assume_all},
      {"any", assume_all},       {"multinomial", assume_sample}, {"copy", assume_conversion}};
  const auto rule = kRules.find(base);
  return rule == kRules.end() ? nullptr : rule->second;
}

/// A value for what the host reads though it is unknown: 0.5, 1 or true. False if it is too large for one.
inline bool assume_value(const at::Tensor& t) {
  if (bytes_of(t) > limit_bytes(t) || c10::isComplexType(t.scalar_type())) return false;
  const std::optional<at::Tensor> view = host_view(t);
  if (!view) return false;
  at::Tensor target = *view;
  const at::Tensor value = at::detail::empty_cpu({}, at::kFloat);
  *static_cast<float*>(value.mutable_data_ptr()) = read_as(t);
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), target, value, false);
  set_known(t, VRAMFIT_ASSUMES_VALUE);
  return true;
}

}  // namespace vramfit::values
