#include "program/program.h"

#include <array>

namespace vramfit::program {

std::string_view kernel_name(Kernel kernel) {
  constexpr std::array<std::string_view, 9> names{"fill", "cast",  "add",  "forward", "backward",
                                                  "norm", "scale", "mask", "update"};
  return names.at(static_cast<std::size_t>(kernel));
}

std::string label_text(const Program& program, int segment, int label) {
  const std::string& text = program.labels.at(static_cast<std::size_t>(label));
  return segment < 0 ? text : program.segments.at(static_cast<std::size_t>(segment)) + text;
}

}  // namespace vramfit::program
