// One unit while a step is counted: the counting side of executor/sharding/unit_state, call for call.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "model_specs/graph.h"
#include "program/counted_blocks.h"
#include "program/units_layout.h"

namespace vramfit {

/// What all units of a rank share.
struct CountedUnits {
  const Graph& graph;
  const Precision& precision;
  const UnitLayout& layout;
  CountedBlocks& blocks;
};

class UnitCounter {
 public:
  UnitCounter(const CountedUnits& shared, const Unit& unit) : shared_(shared), unit_(unit) {}

  /// The shard and the optimizer's states.
  void load();
  /// Allocates the gathered storage, unless it exists or the shard itself is used.
  void gather();
  void release() { gathered_.reset(); }
  /// Allocates the slice that the next gather starts from instead of the shard.
  void reshard();
  /// Where an op of `kind` writes its gradient of `parameter`: the gradient shard itself, or a buffer to be reduced.
  void make_gradient(OpKind kind, int parameter);
  /// Buffers become sums that a later micro-batch reduces, the largest first.
  void accumulate();
  /// Buffers, with the sums of earlier micro-batches, become pieces of the reduction, the largest first.
  void reduce();
  void finish();
  void step() { gradient_shard_.reset(); }
  bool has_gradient_shard() const { return gradient_shard_ != nullptr; }

 private:
  struct Buffer {
    Block block;
    Dtype dtype = Dtype::f32;
  };

  /// Labels that a step uses again and again are made once.
  enum Label { gathered, kept_slice, gradient_shard, gradient, accumulated_gradient, reduce_piece };
  static constexpr std::size_t kLabels = 6;
  using Labels = std::array<int, kLabels>;
  static constexpr Labels kNoLabels{-1, -1, -1, -1, -1, -1};

  int label(Label what);
  int label(Label what, int parameter);
  const UnitParameter& slot_of(int parameter) const;
  void make_gradient_shard();

  const CountedUnits& shared_;
  const Unit& unit_;
  Block shard_, exp_avg_, exp_avg_sq_, step_, gathered_, kept_slice_, gradient_shard_;
  std::map<int, Buffer> buffers_;  // by parameter: gradients not yet reduced
  std::map<int, Block> sums_;      // by parameter: whole gradients of earlier micro-batches, in the reduce dtype
  std::vector<Block> pieces_;      // being reduced
  Labels labels_ = kNoLabels;
  std::map<int, Labels> parameter_labels_;
};

}  // namespace vramfit
