// Reads a section of a program with its blocks inlined: every reader that needs events goes through here.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <variant>

#include "program/program.h"

namespace vramfit::program {

/// Where an instruction stands: in the main list, or in a block that a call of it inlines.
struct Place {
  const Program& program;
  const Code& code;
  const int* bindings = nullptr;  // of the call, by slot
  int slots = 0;
  int segment = -1;                       // of the call, which completes labels of the block
  const std::int64_t* offsets = nullptr;  // of the call, by View::base

  /// One number for each buffer that lives at this point: those of the main list, then those of the block.
  int number(int buffer) const {
    if (bindings == nullptr) return buffer;
    return buffer < slots ? bindings[buffer] : static_cast<int>(program.main.buffers.size()) + buffer;
  }
  /// The block's own, or one of the main list.
  const Buffer& buffer(int buffer) const {
    if (is_own(buffer)) return code.buffers[static_cast<std::size_t>(buffer)];
    return program.main.buffers[static_cast<std::size_t>(bindings[buffer])];
  }
  /// Whose name goes before its label; -1: none.
  int segment_of(int buffer) const {
    return bindings != nullptr && is_own(buffer) ? segment : this->buffer(buffer).segment;
  }
  bool is_own(int buffer) const { return bindings == nullptr || buffer >= slots; }
  /// Where the parameter begins of which it is a view, in elements; 0: the view's offset says all.
  std::int64_t base_of(const View& view) const { return view.base < 0 ? 0 : offsets[view.base]; }
  /// How many views an access has, and one of them; none: all of the buffer.
  static bool has_view(const Access& access) { return access.view >= 0; }
  int view_count(const Access& access) const { return has_view(access) ? view(access, 0).parts : 0; }
  const View& view(const Access& access, int part) const {
    return program.views[static_cast<std::size_t>(access.view + part)];
  }
};

/// Inside the block that the main list calls.
inline Place place_in(const Program& program, const Call& call) {
  const Block& block = program.blocks[static_cast<std::size_t>(call.block)];
  return {.program = program,
          .code = block.code,
          .bindings = program.main.bindings.data() + call.bindings.first,
          .slots = block.slots,
          .segment = call.segment,
          .offsets = program.main.offsets.data() + call.offsets.first};
}

/// All numbers of buffers are below this.
inline std::size_t buffer_numbers(const Program& program) {
  std::size_t most = 0;
  for (const Block& block : program.blocks) most = std::max(most, block.code.buffers.size());
  return program.main.buffers.size() + most;
}

/// What may change what is allocated.
template <typename What>
concept ChangesMemory = std::same_as<What, Allocate> || std::same_as<What, Free> || std::same_as<What, Run>;

/// Calls `event(buffer, sign)` with each buffer that `what` of `code` allocates (1) or frees (-1).
template <ChangesMemory What, typename OnEvent>
void for_each_event(const Code& code, const What& what, const OnEvent& event) {
  if constexpr (std::same_as<What, Run>) {
    for (std::uint32_t i = 0; i < what.inside.count; ++i) {
      const Inside& inside = code.inside[what.inside.first + i];
      event(inside.buffer, inside.what == Inside::What::allocate ? 1 : -1);
    }
  } else {
    event(what.buffer, std::same_as<What, Allocate> ? 1 : -1);
  }
}

/// The same of any instruction.
template <typename OnEvent>
void for_each_event(const Code& code, const Instruction& instruction, const OnEvent& event) {
  std::visit(
      [&](const auto& what) {
        if constexpr (ChangesMemory<std::decay_t<decltype(what)>>) for_each_event(code, what, event);
      },
      instruction);
}

/// Calls reader.read(what, place) for each instruction of the section but calls, and but those that the reader has no
/// read() for.
template <typename Reader>
void read_section(const Program& program, const Section& section, Reader& reader) {
  const Place main{.program = program, .code = program.main};
  const auto read = [&](const Instruction& instruction, const Place& place) {
    std::visit(
        [&](const auto& what) {
          if constexpr (requires { reader.read(what, place); }) reader.read(what, place);
        },
        instruction);
  };
  for (std::size_t i = section.begin; i < section.end; ++i) {
    const auto* call = std::get_if<Call>(&program.main.instructions[i]);
    if (call == nullptr) {
      read(program.main.instructions[i], main);
      continue;
    }
    const Place inside = place_in(program, *call);
    for (const Instruction& instruction : inside.code.instructions) read(instruction, inside);
  }
}

}  // namespace vramfit::program
