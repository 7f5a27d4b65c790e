#include "program/stages/kept_values.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/conflict.h"
#include "base/numbers/index.h"

namespace vramfit {

namespace {

constexpr std::size_t kMostTried = 12;                     // candidates of which every subset is tried
constexpr std::size_t kMostValues = 256, kFewValues = 64;  // few: a word

/// A block's ops as sets of up to N values.
template <std::size_t N>
class Block {
 public:
  using Values = std::bitset<N>;

  explicit Block(const BlockOps& ops) : ops_(ops.segment.ops), output_(at(ops.segment.output)) {
    if (ops.segment.values.size() > N) throw std::logic_error(ops.segment.name + ": too many values");
    for (std::size_t v = 0; v < ops.saved.size(); ++v) {
      saved_[v] = ops.saved[v];
      const Value& value = ops.segment.values[v];
      bytes_.push_back(value.type == ValueType::ids
                           ? Bytes{}
                           : element_count(value, ops.shape) * dtype_bytes(value_dtype(value, ops.precision)));
    }
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      inputs_.push_back(set_of(ops_[i].inputs));
      outputs_.push_back(set_of(ops_[i].outputs));
      const int taken = ops.rules[i].in_place_input;
      taken_.push_back(taken < 0 ? std::nullopt : std::optional(at(ops_[i].inputs[at(taken)])));
      double work = 0;
      for (const Work& kernel : ops.rules[i].work.forward) {
        work += std::max(kernel.flops, kFlopsWhileByteMoves * kernel.bytes);
      }
      work_.push_back(work);
    }
    for (std::size_t i = 0; i < ops_.size(); ++i) results_.push_back(become(i));
    for (std::size_t v = 1; v < bytes_.size(); ++v) {
      if (v != output_ && bytes_[v].n > 0) sized_.push_back(v);
    }
  }

  std::size_t ops() const { return ops_.size(); }
  /// Whether it has a result of its own other than the block's output.
  bool may_keep(std::size_t op) const {
    Values own = results_[op];
    own[output_] = false;
    return !taken_[op] && own.any();
  }
  OpKind kind(std::size_t op) const { return ops_[op].kind; }
  /// An op's outputs, or what later ops make of them in place.
  const Values& results(std::size_t op) const { return results_[op]; }

  /// But for input and output, which are there in any case or the next segment's affair.
  Bytes bytes(const Values& values) const {
    Bytes sum;
    for (const std::size_t v : sized_) {
      if (values[v]) sum += bytes_[v];
    }
    return sum;
  }
  Bytes saved_bytes() const { return bytes(saved_); }

  struct Cost {
    double work = std::numeric_limits<double>::infinity();  // of what runs again
    Bytes bytes;                                            // kept
    bool operator<(const Cost& other) const { return std::pair(work, bytes) < std::pair(other.work, other.bytes); }
  };
  /// With infinite work where more than `most` bytes are kept.
  Cost cost(const Values& wanted, Bytes most) const {
    const auto [kept, runs] = made_with(wanted);
    Cost cost{.bytes = bytes(kept)};
    if (cost.bytes > most) return cost;
    cost.work = 0;
    for (std::size_t i = 0; i < work_.size(); ++i) cost.work += runs[i] ? work_[i] : 0;
    return cost;
  }

  Recomputation recomputation(const Values& wanted) const {
    const auto [kept, runs] = made_with(wanted);
    Recomputation made;
    for (std::size_t v = 0; v < bytes_.size(); ++v) made.kept.push_back(kept[v]);
    for (std::size_t i = 0; i < ops_.size(); ++i) made.runs.push_back(runs[i]);
    return made;
  }

 private:
  static Values set_of(const std::vector<int>& values) {
    Values set;
    for (const int value : values) set.set(at(value));
    return set;
  }

  Values become(std::size_t op) const {
    Values results = outputs_[op];
    for (std::size_t i = op + 1; i < ops_.size(); ++i) {
      if (!taken_[i] || !results[*taken_[i]]) continue;
      results[*taken_[i]] = false;
      results |= outputs_[i];
    }
    return results;
  }

  /// What is kept of `wanted` and the input, and which ops run again: a bit for each. An op has at least one output, so
  /// there are no more ops than values.
  std::pair<Values, Values> made_with(const Values& wanted) const {
    Values kept = wanted, needed = saved_, runs;
    kept[0] = true;
    kept[output_] = false;
    for (std::size_t i = ops_.size(); i-- > 0;) {
      if ((outputs_[i] & needed & ~kept).none()) continue;
      runs[i] = true;
      needed |= inputs_[i];
    }
    return {kept & needed, runs};
  }

  const std::vector<Op>& ops_;
  std::size_t output_;
  Values saved_;
  std::vector<Bytes> bytes_;                        // per value
  std::vector<std::size_t> sized_;                  // values that have any, but for input and output
  std::vector<Values> inputs_, outputs_, results_;  // per op
  std::vector<std::optional<std::size_t>> taken_;   // per op: the value whose storage its output takes over
  std::vector<double> work_;                        // per op, of its forward
};

template <std::size_t N>
std::bitset<N> chosen_by(const Block<N>& block, const SelectiveCheckpointing& policy) {
  const std::vector<KeptOps> usual{{.kind = "attention"}, {.kind = "linear", .every = 2}};
  std::bitset<N> chosen;
  for (const KeptOps& wanted : policy.kept.empty() ? usual : policy.kept) {
    std::int64_t seen = 0;
    for (std::size_t i = 0; i < block.ops(); ++i) {
      if (op_name(block.kind(i)) == wanted.kind && seen++ % wanted.every == 0) chosen |= block.results(i);
    }
  }
  return chosen;
}

/// Of all policies that are budgets, the best that each can pay for.
template <std::size_t N>
class Budgets {
 public:
  using Values = std::bitset<N>;

  Budgets(const Block<N>& block, const std::vector<KeptPolicy>& policies) : block_(block), chosen_(policies.size()) {
    for (std::size_t i = 0; i < block.ops(); ++i) {
      if (block.may_keep(i)) candidates_.push_back(i);
    }
    for (std::size_t p = 0; p < policies.size(); ++p) {
      const auto* budget = std::get_if<BudgetCheckpointing>(&policies[p]);
      if (budget == nullptr) continue;
      budgets_.push_back({p, Bytes{checked_mul(block.saved_bytes().n, budget->percent) / 100}});
    }
    if (candidates_.size() <= kMostTried) {
      try_subsets();
    } else {
      for (const Budget& budget : budgets_) chosen_[budget.policy] = one_by_one(budget.most);
    }
  }

  const Values& chosen(std::size_t policy) const { return chosen_[policy]; }

 private:
  struct Budget {
    std::size_t policy = 0;
    Bytes most;
    typename Block<N>::Cost cost = {};  // of what was chosen so far
  };

  void try_subsets() {
    if (budgets_.empty()) return;
    const Bytes most = std::ranges::max_element(budgets_, {}, &Budget::most)->most;
    for (std::uint32_t subset = 0; subset < (1U << candidates_.size()); ++subset) {
      Values wanted;
      for (std::uint32_t rest = subset; rest != 0; rest &= rest - 1) {
        wanted |= block_.results(candidates_[static_cast<std::size_t>(std::countr_zero(rest))]);
      }
      const auto cost = block_.cost(wanted, most);
      if (cost.bytes > most) continue;
      for (Budget& budget : budgets_) {
        if (cost.bytes > budget.most || !(cost < budget.cost)) continue;
        budget.cost = cost;
        chosen_[budget.policy] = wanted;
      }
    }
  }

  Values one_by_one(Bytes most) const {
    Values chosen;
    std::vector<std::size_t> left = candidates_;
    auto now = block_.cost(chosen, Bytes{std::numeric_limits<std::int64_t>::max()});
    while (true) {
      auto next = left.end();
      double most_saved = 0;  // work for each byte
      for (auto op = left.begin(); op != left.end(); ++op) {
        const auto cost = block_.cost(chosen | block_.results(*op), most);
        if (cost.bytes > most) continue;
        const auto more = static_cast<double>(std::max<std::int64_t>(1, cost.bytes.n - now.bytes.n));
        if ((now.work - cost.work) / more <= most_saved) continue;
        most_saved = (now.work - cost.work) / more;
        next = op;
      }
      if (next == left.end()) return chosen;
      chosen |= block_.results(*next);
      left.erase(next);
      now = block_.cost(chosen, most);
    }
  }

  const Block<N>& block_;
  std::vector<Values> chosen_;  // by policy
  std::vector<std::size_t> candidates_;
  std::vector<Budget> budgets_;
};

/// Of each policy.
template <std::size_t N>
std::vector<Recomputation> recompute_but(const Block<N>& block, const std::vector<KeptPolicy>& policies) {
  const Budgets<N> budgets(block, policies);
  std::vector<Recomputation> made;
  for (std::size_t p = 0; p < policies.size(); ++p) {
    const auto* selective = std::get_if<SelectiveCheckpointing>(&policies[p]);
    made.push_back(block.recomputation(selective != nullptr ? chosen_by(block, *selective) : budgets.chosen(p)));
  }
  return made;
}

/// is_selective() holds.
KeptPolicy policy_of(const Checkpointing& checkpointing) {
  if (const auto* budget = std::get_if<BudgetCheckpointing>(&checkpointing)) return *budget;
  return std::get<SelectiveCheckpointing>(checkpointing);
}

const std::vector<KeptPolicy>& searched_policies() {
  static const std::vector<KeptPolicy> kPolicies{
      SelectiveCheckpointing{}, SelectiveCheckpointing{.kept = {{.kind = "attention"}}},
      BudgetCheckpointing{.percent = 25}, BudgetCheckpointing{.percent = 50}, BudgetCheckpointing{.percent = 75}};
  return kPolicies;
}

}  // namespace

void require_kept_kinds(const Graph& graph, const Checkpointing& checkpointing) {
  const auto* selective = std::get_if<SelectiveCheckpointing>(&checkpointing);
  if (selective == nullptr || selective->kept.empty()) return;
  std::set<std::string> kinds;
  for (const Segment& segment : graph.segments) {
    if (segment.role != SegmentRole::block) continue;
    for (const Op& op : segment.ops) kinds.emplace(op_name(op.kind));
  }
  if (std::ranges::any_of(selective->kept, [&](const KeptOps& ops) { return kinds.contains(ops.kind); })) return;
  const std::string& missing = selective->kept.front().kind;
  throw Conflict(
      fmt::format("--checkpointing selective:{0}: layers of this model have no {0}, so that nothing would "
                  "be kept; they have {1}",
                  missing, fmt::join(kinds, ", ")));
}

bool is_selective(const Checkpointing& checkpointing) {
  return std::holds_alternative<SelectiveCheckpointing>(checkpointing) ||
         std::holds_alternative<BudgetCheckpointing>(checkpointing);
}

bool has_own_policy(const Checkpointing& checkpointing) {
  return is_selective(checkpointing) && policy_number(checkpointing) == searched_policies().size();
}

std::vector<KeptPolicy> kept_policies(const Checkpointing& checkpointing) {
  std::vector<KeptPolicy> policies = searched_policies();
  if (has_own_policy(checkpointing)) policies.push_back(policy_of(checkpointing));
  return policies;
}

std::size_t policy_number(const Checkpointing& checkpointing) {
  const std::vector<KeptPolicy>& policies = searched_policies();
  return static_cast<std::size_t>(std::ranges::find(policies, policy_of(checkpointing)) - policies.begin());
}

Recomputation recompute_all(const BlockOps& block) { return Block<kMostValues>(block).recomputation({}); }

std::vector<Recomputation> recompute_but(const BlockOps& block, const std::vector<KeptPolicy>& policies) {
  const bool are_few = block.segment.values.size() <= kFewValues;
  return are_few ? recompute_but(Block<kFewValues>(block), policies)
                 : recompute_but(Block<kMostValues>(block), policies);
}

}  // namespace vramfit
