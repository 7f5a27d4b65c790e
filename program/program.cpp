#include "program/program.h"

#include <array>

#include "job/sharding/mesh.h"

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
  groups.at(static_cast<std::size_t>(Axis::data)) = {stride, 1};
  return groups;
}

std::string_view kernel_name(Kernel kernel) {
  constexpr std::array<std::string_view, kKernels> names{
      "zero",       "load_shard",   "load_states",  "load_mask",        "load_scale",    "rope_table",
      "workspaces", "inputs",       "gather_own",   "gather_kept",      "keep_slice",    "copy",
      "add",        "add_whole",    "add_own",      "add_fp8",          "code_fp8",      "add_fp8_parts",
      "sum_fp8",    "read_scaled",  "round_scaled", "read_fp8",         "forward",       "backward",
      "add_loss",   "norm_begin",   "norm_parts",   "norm_rest",        "scale",         "mask",
      "update",     "update_scale", "save_states",  "gather_parameter", "gather_scaled", "write_parameter",
      "encode",     "call"};
  return names.at(static_cast<std::size_t>(kernel));
}

std::string_view space_name(Space space) {
  constexpr std::array<std::string_view, kSpaces> names{"device", "pinned", "host", "managed"};
  return names.at(static_cast<std::size_t>(space));
}

std::string_view collective_name(Collective collective) {
  constexpr std::array<std::string_view, 6> names{"all_gather", "reduce_scatter", "all_reduce",
                                                  "all_to_all", "send",           "receive"};
  return names.at(static_cast<std::size_t>(collective));
}

std::string_view axis_name(Axis axis) {
  constexpr std::array<std::string_view, kAxes - kMeshAxes.size()> others{"reshard", "data", "tensor", "pipeline",
                                                                          "expert"};
  const auto number = static_cast<std::size_t>(axis);
  return number < kMeshAxes.size() ? kMeshAxes.at(number).name : others.at(number - kMeshAxes.size());
}

bool is_copy(Kernel kernel) {
  return kernel == Kernel::gather_own || kernel == Kernel::gather_kept || kernel == Kernel::keep_slice ||
         kernel == Kernel::copy || kernel == Kernel::encode;
}

bool reaches_host(Kernel kernel) {
  return kernel == Kernel::copy || kernel == Kernel::inputs || kernel == Kernel::zero || kernel == Kernel::load_shard ||
         kernel == Kernel::load_states || kernel == Kernel::load_mask || kernel == Kernel::save_states ||
         kernel == Kernel::gather_parameter || kernel == Kernel::write_parameter;
}

std::vector<Section> merged_sections(const Program& program) {
  std::vector<Section> merged;
  for (const Section& section : program.sections) {
    const bool is_once_more = !merged.empty() && section.begin != section.end && merged.back().begin == section.begin &&
                              merged.back().end == section.end && merged.back().steps == section.steps;
    if (is_once_more) {
      merged.back().times += section.times;
    } else {
      merged.push_back(section);
    }
  }
  return merged;
}

bool is_save(const Section& section) {
  return section.kind == Section::Kind::save_sharded || section.kind == Section::Kind::save_full;
}

bool is_in_step(const Section& section, int step) {
  if (section.kind == Section::Kind::load || is_save(section) || step < 1) return false;
  return section.steps == Section::Steps::every || (section.steps == Section::Steps::first) == (step == 1);
}

std::string_view run_name(const Program& program, const Run& run) {
  return run.kernel == Kernel::call && run.op >= 0 ? program.labels.at(static_cast<std::size_t>(run.op))
                                                   : kernel_name(run.kernel);
}

std::string label_text(const Program& program, int segment, int label) {
  const std::string& text = program.labels.at(static_cast<std::size_t>(label));
  return segment < 0 ? text : program.segments.at(static_cast<std::size_t>(segment)) + text;
}

}  // namespace vramfit::program
