// What would need less memory: single changes of a job, each of them estimated.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "estimator/estimate.h"
#include "program/program.h"

namespace vramfit {

/// What an estimate is made from: a resolved job's graph, for this run. All of it outlives the suggestions.
struct Estimated {
  const ModelSpec& spec;
  const Graph& graph;
  RunEffects run;
  bool has_default_loss = false;  // nobody said how the loss is computed: a changed job may have another default
};

class Suggestions {
 public:
  /// `e`: with its job and cluster. What the job needs isn't known yet.
  Suggestions(const Estimate& e, Estimated from);
  Suggestions(const Suggestions&) = delete;
  Suggestions(Suggestions&&) = delete;
  Suggestions& operator=(const Suggestions&) = delete;
  Suggestions& operator=(Suggestions&&) = delete;
  ~Suggestions();

  /// Parts of the work that don't depend on what the job needs, and may be done beside its estimate: in any order, each
  /// once or not at all.
  std::size_t parts_ahead() const;
  void do_ahead(std::size_t part);
  /// Up to six single changes, each re-estimated, most saved first. `e`: of the same job, with what it needs, and with
  /// its verdict. `program`: the job's, for its run.
  std::vector<Suggestion> made(const Estimate& e, const program::Program& program);

 private:
  struct Change;
  std::optional<Suggestion> suggestion(Change& change, const Estimate& e, const program::Program& program) const;

  const Estimated from_;
  const Job job_;
  std::vector<Change> changes_;
};

}  // namespace vramfit
