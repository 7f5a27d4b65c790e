// What would need less memory: single changes of a job, each of them estimated.
#pragma once

#include <cstddef>
#include <deque>
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

  /// Parts of the work that may be done beside the job's estimate: in any order, each once or not at all. First those
  /// that don't depend on what the job needs, then as many that do, of which those are left out whose first part isn't
  /// done. `job`: what made() is given, once what the job needs is known; before that, nothing.
  std::size_t parts_ahead() const;
  struct Needs {
    const Estimate& estimate;
    const program::Program& program;
  };
  void do_ahead(std::size_t part, const std::optional<Needs>& job);
  /// Up to six single changes, each re-estimated, most saved first. `e`: of the same job, with what it needs, and with
  /// its verdict. `program`: the job's, for its run.
  std::vector<Suggestion> made(const Estimate& e, const program::Program& program);

 private:
  struct Change;
  void make(Change& change, const Needs& job) const;

  const Estimated from_;
  const Job job_;
  std::deque<Change> changes_;
};

}  // namespace vramfit
