// What a runtime has rules for, and how a step under it becomes a program.
#pragma once

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "program/lowering/lower.h"
#include "program/program.h"

namespace vramfit {

struct RuntimeRow {
  /// Throws NotModelled for the first choice that has no rules, by its flag.
  void (*require_rules)(const Job& job, const Cluster& cluster);
  /// Throws NotModelled for graphs without rules.
  program::Program (*make_program)(const program::LowerInputs& inputs);
};

const RuntimeRow& runtime_row(Runtime runtime);

#define RUNTIME(x, name) RuntimeRow x##_row();
#include "job/stacks/runtimes.def"
#undef RUNTIME

}  // namespace vramfit
