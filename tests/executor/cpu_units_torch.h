// Small programs of units alone, run on CPU ranks without a trainer around them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "executor/sharding/unit_runs_torch.h"
#include "executor/sharding/unit_state_torch.h"
#include "executor/training/program_runner_torch.h"
#include "job/job.h"
#include "program/lowering/host.h"
#include "program/lowering/unit.h"
#include "program/stages/load_rows.h"

namespace vramfit::testing {

/// A test lowers what units are to do, section by section, and then runs the sections and looks at tensors in between.
/// What is passed must outlive it.
class UnitPrograms {
 public:
  UnitPrograms(const Graph& graph, const Job& job, const UnitLayout& layout, ProcessGroups& groups)
      : graph_(graph),
        layout_(layout),
        groups_(groups),
        unit_views_(views_, layout, {.shard = groups.shard().rank()}),
        host_(writer, labels_, tokens_, DeviceKind::cpu, offload_of(job)),
        lowering_{graph,   job.precision, layout, optimizer_named(job.optimizer), DeviceKind::cpu, writer, labels_,
                  tokens_, unit_views_,   host_},
        runs_({.graph = graph,
               .layout = layout,
               .optimizer = optimizer_named(job.optimizer),
               .shard_rank = groups.shard().rank()}) {
    for (std::size_t u = 0; u < layout.units.size(); ++u) units.emplace_back(lowering_, static_cast<int>(u));
  }

  /// Loads all units; with `staging`, rank 0's buffer for the rows of other ranks is there meanwhile.
  void load(Bytes staging = Bytes{0}) {
    const program::Held rows = writer.allocate({.bytes = staging, .label = 0, .category = Category::communication});
    for (program::UnitLowering& unit : units) unit.load(rows);
  }

  /// Ends a section; its number.
  std::size_t end_section() {
    const std::size_t begin = sections_.empty() ? 0 : sections_.back().end;
    sections_.push_back({.begin = begin, .end = writer.code().instructions.size()});
    return sections_.size() - 1;
  }

  /// Nothing can be lowered afterwards. `rows`: given what rank 0 reads into; null where it doesn't read for others.
  void begin(std::function<std::unique_ptr<RowSupply>(const at::Tensor* staging)> rows) {
    program_.main = writer.code();
    program_.tokens = tokens_;
    program_.views = views_.take();
    program_.labels.assign(static_cast<std::size_t>(kMostLabels), "label");
    runner_ = std::make_unique<ProgramRunner>(
        ProgramRunner::Inputs{.lowered = program_, .groups = groups_, .device = at::kCPU});
    add_unit_runs(*runner_);
    runner_->on(program::Kernel::gather_own, [this](Operands& o) { runs_.gather_own(o); });
    runner_->on(program::Kernel::load_states, [this](Operands& o) { runs_.load_states(o, nullptr); });
    runner_->on(program::Kernel::load_shard, [this, rows = std::move(rows)](Operands& o) {
      const std::size_t staging = o.size() - 1;
      if (rows_ == nullptr) rows_ = rows(o.has(staging) ? &o[staging] : nullptr);
      runs_.load_shard(o, *rows_);
    });
  }
  void begin(WeightSource& weights) {
    begin([&](const at::Tensor* /*staging*/) { return each_reads(weights, groups_.shard()); });
  }

  void run(std::size_t section) { runner_->run(sections_[section]); }
  at::Tensor tensor(int buffer) const { return runner_->tensor(buffer); }
  UnitState state(std::size_t unit) const {
    return {layout_.units[unit], lowering_.precision, unit_buffers(program_, layout_)[unit], *runner_};
  }
  /// A parameter as ops read it from its unit's storage.
  at::Tensor weight(const program::Held& storage, int parameter) const {
    const auto p = static_cast<std::size_t>(parameter);
    const Unit& unit = layout_.units[static_cast<std::size_t>(layout_.unit_of_parameter[p])];
    const UnitParameter& place = unit.parameters[static_cast<std::size_t>(layout_.slot_of_parameter[p])];
    const std::int64_t offset = unit.gathered_is_shard ? place.shard_offset : place.gathered_offset;
    return tensor(storage.buffer()).narrow(0, offset, place.rows * place.row_elements).view(graph_.parameters[p].shape);
  }

  program::Writer writer;  // outlives what it handed out
  std::vector<program::UnitLowering> units;

 private:
  static constexpr int kMostLabels = 1000;

  const Graph& graph_;
  const UnitLayout& layout_;
  ProcessGroups& groups_;
  program::Labels labels_;
  program::Views views_;
  program::UnitViews unit_views_;
  int tokens_ = 0;
  program::HostSide host_;
  program::UnitsInputs lowering_;
  UnitRuns runs_;
  program::Program program_;
  std::vector<program::Section> sections_;
  std::unique_ptr<RowSupply> rows_;
  std::unique_ptr<ProgramRunner> runner_;
};

}  // namespace vramfit::testing
