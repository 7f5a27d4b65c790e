#include "program/program.h"

#include <array>

#include "job/mesh.h"

namespace vramfit::program {

std::array<Group, kAxes> groups_of(const Mesh& mesh, std::int64_t reshard_ranks) {
  std::array<Group, kAxes> groups = {};
  std::int64_t stride = 1;
  for (std::size_t axis = kMeshAxes.size(); axis-- > 0;) {
    const std::int64_t ranks = mesh.*kMeshAxes[axis].ranks;
    groups.at(axis) = {ranks, stride};
    stride *= ranks;
  }
  groups.at(static_cast<std::size_t>(Axis::reshard)) = {reshard_ranks, 1};
  return groups;
}

std::string_view kernel_name(Kernel kernel) {
  constexpr std::array<std::string_view, kKernels> names{
      "zero",       "zero_padding", "load_shard", "load_states", "load_mask",    "load_scale", "rope_table",
      "workspaces", "inputs",       "gather_own", "gather_kept", "keep_slice",   "copy",       "add",
      "add_whole",  "add_own",      "forward",    "backward",    "add_loss",     "norm_begin", "norm_parts",
      "norm_rest",  "scale",        "mask",       "update",      "update_scale", "call"};
  return names.at(static_cast<std::size_t>(kernel));
}

bool is_copy(Kernel kernel) {
  return kernel == Kernel::gather_own || kernel == Kernel::gather_kept || kernel == Kernel::keep_slice ||
         kernel == Kernel::copy;
}

bool is_in_step(const Section& section, int step) {
  if (section.kind == Section::Kind::load || step < 1) return false;
  return section.steps == Section::Steps::every || (section.steps == Section::Steps::first) == (step == 1);
}

std::string_view run_name(const Program& program, const Run& run) {
  return run.kernel == Kernel::call ? program.labels.at(static_cast<std::size_t>(run.op)) : kernel_name(run.kernel);
}

std::string label_text(const Program& program, int segment, int label) {
  const std::string& text = program.labels.at(static_cast<std::size_t>(label));
  return segment < 0 ? text : program.segments.at(static_cast<std::size_t>(segment)) + text;
}

}  // namespace vramfit::program
