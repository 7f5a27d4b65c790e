// What the modelings of PyTorch's libraries read of a segment of a graph: its ops, in order, and their parameters.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit::eager {

/// Parameters by index in the graph; -1: no bias, no adapter, or no such linear.
struct LinearParameters {
  int weight = -1, bias = -1;
  int lora_a = -1, lora_b = -1, magnitudes = -1;
};

/// The same of a LayerNorm.
struct NormParameters {
  int weight = -1, bias = -1;
};

/// Those that there are, in the order in which modules hold them.
void append_parameters(std::vector<int>& list, const LinearParameters& of);
void append_parameters(std::vector<int>& list, const NormParameters& of);

/// Throws NotModelled("modeling NAME of WHAT"), with the job's modeling.
[[noreturn]] void refuse_model(const Job& job, const std::string& what);

/// Refuses attention that is left to a library whose configuration asks for other code than its usual.
void require_usual_attention(const Graph& graph, const Job& job);

/// A segment's ops, in order. What isn't there as expected is refused as `other_model`.
class SegmentReader {
 public:
  SegmentReader(const Segment& segment, const Job& job, const char* other_model)
      : segment_(segment), job_(job), other_model_(other_model) {}

  bool is_next(OpKind kind) const { return next_ < segment_.ops.size() && segment_.ops[next_].kind == kind; }
  const Op& take(OpKind kind);
  void require_end() const;

  NormParameters layer_norm();
  /// Of `linear`, which was taken, with its adapter if that is next.
  LinearParameters with_adapter(const Op& linear);

  [[noreturn]] void refuse() const { refuse_model(job_, other_model_); }

 private:
  const Segment& segment_;
  const Job& job_;
  const char* other_model_;
  std::size_t next_ = 0;
};

}  // namespace vramfit::eager
