#include "estimator/time/alike_segments.h"

#include <algorithm>
#include <numeric>

#include "base/numbers/index.h"

namespace vramfit {

namespace {

bool are_laid_out_alike(const Unit& a, const Unit& b) {
  const auto same = [](const UnitParameter& p, UnitParameter q) {
    q.parameter = p.parameter;
    return p == q;
  };
  return a.compute == b.compute && a.reduce == b.reduce && a.trained == b.trained && a.gradient == b.gradient &&
         a.gathered_elements == b.gathered_elements && a.trainable_elements == b.trainable_elements &&
         a.fp8_gradient_elements == b.fp8_gradient_elements && a.fp8_gradients == b.fp8_gradients &&
         a.sends_fp8_gradients == b.sends_fp8_gradients && a.scaled_elements == b.scaled_elements &&
         a.scales == b.scales && a.kept_elements == b.kept_elements && a.gathered_is_shard == b.gathered_is_shard &&
         a.coded_elements == b.coded_elements && a.codes_bytes == b.codes_bytes && a.storages == b.storages &&
         std::ranges::equal(a.parameters, b.parameters, same);
}

/// Places in the unit, in the order of the parameters in the graph.
std::vector<std::size_t> in_order(const Unit& unit) {
  std::vector<std::size_t> places(unit.parameters.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::ranges::sort(places, {}, [&](std::size_t place) { return unit.parameters[place].parameter; });
  return places;
}

class Alike {
 public:
  Alike(const Graph& graph, const UnitLayout& layout) : graph_(graph), layout_(layout) {}

  /// Of segments that have one unit each.
  bool are_alike(std::size_t a, std::size_t b) const {
    const Unit &of_a = unit(a), &of_b = unit(b);
    const auto same_place = [&](int p, int q) { return slot(p) == slot(q); };
    const auto same_use = [&](const ParameterUse& p, const ParameterUse& q) {
      return slot(p.parameter) == slot(q.parameter) && p.first == q.first && p.count == q.count;
    };
    const auto same_op = [&](const Op& p, const Op& q) {
      return p.kind == q.kind && std::ranges::equal(p.parameters, q.parameters, same_use);
    };
    return are_laid_out_alike(of_a, of_b) && std::ranges::equal(of_a.reduce_order, of_b.reduce_order, same_place) &&
           in_order(of_a) == in_order(of_b) &&
           std::ranges::equal(graph_.segments[a].ops, graph_.segments[b].ops, same_op);
  }

 private:
  const Unit& unit(std::size_t segment) const { return layout_.units[at(layout_.units_of_segment[segment].front())]; }
  int slot(int parameter) const { return layout_.slot_of_parameter[at(parameter)]; }

  const Graph& graph_;
  const UnitLayout& layout_;
};

}  // namespace

std::vector<std::size_t> first_alike(const Graph& graph, const UnitLayout& layout) {
  const Alike alike(graph, layout);
  std::vector<int> users(layout.units.size());
  for (const std::vector<int>& units : layout.units_of_segment) {
    for (const int unit : units) ++users[at(unit)];
  }
  std::vector<std::size_t> like, firsts;  // firsts: those that others may be like
  for (std::size_t s = 0; s < graph.segments.size(); ++s) {
    like.push_back(s);
    const std::vector<int>& units = layout.units_of_segment[s];
    if (units.size() != 1 || users[at(units.front())] != 1) continue;
    const auto first = std::ranges::find_if(firsts, [&](std::size_t other) { return alike.are_alike(other, s); });
    if (first == firsts.end()) {
      firsts.push_back(s);
    } else {
      like.back() = *first;
    }
  }
  return like;
}

}  // namespace vramfit
