#include <algorithm>
#include <utility>

#include "executor/sharding/load_rows_torch.h"
#include "program/stages/load_rows.h"

namespace vramfit {

namespace {

/// Rows [first, first + count) of a rank's slice, as far as the parameter has them.
struct RowRange {
  std::int64_t first = 0, count = 0;  // of the parameter
};

RowRange rows_of(const UnitParameter& p, std::int64_t rank, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = rank * p.rows_per_rank + first;
  return {begin, std::clamp<std::int64_t>(p.rows - begin, 0, count)};
}

class EachReads final : public RowSupply {
 public:
  EachReads(WeightSource& weights, const Collectives& shard_group) : weights_(weights), shard_group_(shard_group) {}

  void fill(const Parameter& parameter, const UnitParameter& p, at::Tensor slice) override {
    const RowRange rows = rows_of(p, shard_group_.rank(), 0, p.rows_per_rank);
    if (rows.count == 0) return;
    at::Tensor into = slice.narrow(0, 0, rows.count * p.row_elements);
    weights_.read_rows(parameter, rows.first, rows.count, into);
  }

 private:
  WeightSource& weights_;
  const Collectives& shard_group_;
};

class Rank0Reads final : public RowSupply {
 public:
  Rank0Reads(WeightSource& weights, const LoadGroups& groups)
      : weights_(weights),
        groups_(groups),
        is_reader_(groups.shard.rank() == 0 && groups.replicate.rank() == 0),
        own_(weights, groups.shard) {}

  void fill(const Parameter& parameter, const UnitParameter& p, at::Tensor slice) override {
    if (p.shard_elements == 0) return;
    if (groups_.replicate.rank() == 0) {
      if (groups_.shard.size() == 1) {
        own_.fill(parameter, p, slice);
      } else {
        spread(parameter, p, slice);
      }
    }
    if (const Pending sent = groups_.replicate.broadcast(std::move(slice))) sent->wait();
  }

 private:
  void spread(const Parameter& parameter, const UnitParameter& p, const at::Tensor& slice) {
    const std::int64_t most = load_chunk_rows(p, groups_.shard.size());
    for (std::int64_t first = 0; first < p.rows_per_rank; first += most) {
      const std::int64_t count = std::min(most, p.rows_per_rank - first);
      std::vector<at::Tensor> slices;
      if (is_reader_) slices = staged(parameter, p, {first, count}, slice.scalar_type());
      const at::Tensor into = slice.narrow(0, first * p.row_elements, count * p.row_elements);
      if (const Pending sent = groups_.shard.scatter(std::move(slices), into)) sent->wait();
    }
  }

  /// Rows `chunk` of each rank's slice, read one rank after the other; zeros where the parameter has no more.
  std::vector<at::Tensor> staged(const Parameter& parameter, const UnitParameter& p, RowRange chunk,
                                 at::ScalarType type) {
    const std::int64_t elements = chunk.count * p.row_elements;
    const std::int64_t bytes = elements * static_cast<std::int64_t>(at::elementSize(type));
    std::vector<at::Tensor> slices;
    for (int rank = 0; rank < groups_.shard.size(); ++rank) {
      at::Tensor slice = groups_.staging->narrow(0, rank * bytes, bytes).view(type);
      const RowRange rows = rows_of(p, rank, chunk.first, chunk.count);
      const std::int64_t read = rows.count * p.row_elements;
      at::Tensor into = slice.narrow(0, 0, read);
      if (read > 0) weights_.read_rows(parameter, rows.first, rows.count, into);
      if (read < elements) slice.narrow(0, read, elements - read).zero_();
      slices.push_back(std::move(slice));
    }
    return slices;
  }

  WeightSource& weights_;
  LoadGroups groups_;
  bool is_reader_;
  EachReads own_;
};

}  // namespace

std::unique_ptr<RowSupply> each_reads(WeightSource& weights, const Collectives& shard_group) {
  return std::make_unique<EachReads>(weights, shard_group);
}

std::unique_ptr<RowSupply> rank0_reads(WeightSource& weights, const LoadGroups& groups) {
  return std::make_unique<Rank0Reads>(weights, groups);
}

}  // namespace vramfit
