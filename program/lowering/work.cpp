#include "program/lowering/work.h"

#include <span>
#include <utility>

namespace vramfit::program {

namespace {

void set_work(Code& code, const SegmentTape& tape) {
  const std::vector<Work> before = std::move(code.work);
  code.work.clear();
  for (Instruction& instruction : code.instructions) {
    auto* run = std::get_if<Run>(&instruction);
    if (run == nullptr) continue;
    std::span<const Work> work(before.data() + run->work.first, run->work.count);
    if (run->kernel == Kernel::forward) {
      const Rule& rule = tape.rules[static_cast<std::size_t>(run->op)];
      work = run->joined < 0 ? rule.work.forward : rule.joint_forward;
    }
    if (run->kernel == Kernel::backward) work = tape.rules[static_cast<std::size_t>(run->op)].work.backward;
    run->work = {static_cast<std::uint32_t>(code.work.size()), static_cast<std::uint32_t>(work.size())};
    code.work.insert(code.work.end(), work.begin(), work.end());
  }
}

}  // namespace

void set_work(Program& program, const SharedTapes& tapes) {
  std::vector<bool> is_set(program.blocks.size());
  for (const Instruction& instruction : program.main.instructions) {
    const auto* call = std::get_if<Call>(&instruction);
    if (call == nullptr || is_set[static_cast<std::size_t>(call->block)]) continue;
    is_set[static_cast<std::size_t>(call->block)] = true;
    set_work(program.blocks[static_cast<std::size_t>(call->block)].code,
             *tapes[static_cast<std::size_t>(call->segment)]);
  }
}

}  // namespace vramfit::program
