#include "program/stages/optimizer_in_backward.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/make_program.h"
#include "program/readers/check.h"
#include "program/schedules/schedule.h"
#include "tests/support/job_line.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using program::Program;
using testing::schedule_of;
using testing::tiny_graph;

Job tiny_job(const char* sharding, const Mesh& mesh) {
  Job job = testing::tiny_job();
  job.sharding = sharding;
  job.mesh = mesh;
  job.bucket_bytes = 1;
  job.optimizer_in_backward = true;
  return job;
}

/// Positions at which a schedule does something with a unit.
std::vector<std::size_t> positions(const std::vector<Instruction>& schedule, Do what, int unit) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].what == what && schedule[i].unit == unit) found.push_back(i);
  }
  return found;
}

std::vector<int> updated_in_backward(const std::vector<Instruction>& schedule) {
  std::vector<int> units;
  for (const Instruction& i : schedule) {
    if (i.what == Do::step && i.unit >= 0) units.push_back(i.unit);
  }
  return units;
}

std::string refusal_of(const std::string& field, const std::string& value, bool clip = false) {
  Job job = testing::tiny_job();
  job.optimizer_in_backward = true;
  job_field_named(field).set(job, value);
  try {
    require_optimizer_in_backward(job, clip);
    return "";
  } catch (const NotModelled& error) {
    return error.what();
  }
}

Program program_of(const std::string& line) {
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line(line + " optimizer_in_backward=on"));
  return program::make_program(
      {.graph = job.graph, .job = job.job, .device = job.cluster.card.device, .coords = {}, .run = {.clip = false}});
}

/// The most gradient shards that a program's main list has allocated at once.
int most_gradient_shards(const Program& program) {
  int live = 0, most = 0;
  const auto is_shard = [&](int buffer) {
    const int label = program.main.buffers[static_cast<std::size_t>(buffer)].label;
    return program.labels[static_cast<std::size_t>(label)].ends_with(": gradient shard");
  };
  for (const program::Instruction& instruction : program.main.instructions) {
    if (const auto* allocate = std::get_if<program::Allocate>(&instruction)) live += is_shard(allocate->buffer) ? 1 : 0;
    if (const auto* free = std::get_if<program::Free>(&instruction)) live -= is_shard(free->buffer) ? 1 : 0;
    most = std::max(most, live);
  }
  return most;
}

/// An update in the main list: its position, that of the last run or collective that changes its gradients, and that of
/// the last pass that reads its parameters, as a gathered copy or where they lie.
struct Update {
  std::size_t at = 0, last_change = 0, last_pass = 0;
  int gradient = -1;
};

/// Whether an instruction is told of a buffer: as an operand, or as what a called block is bound to.
bool names(const Program& program, const program::Instruction& instruction, int buffer) {
  const program::Code& code = program.main;
  const auto has = [&](program::Range range) {
    const auto first = code.accesses.begin() + range.first;
    return std::any_of(first, first + range.count, [&](const program::Access& a) { return a.buffer == buffer; });
  };
  if (const auto* run = std::get_if<program::Run>(&instruction)) return has(run->accesses);
  if (const auto* start = std::get_if<program::Start>(&instruction)) return has(start->accesses);
  const auto* call = std::get_if<program::Call>(&instruction);
  if (call == nullptr) return false;
  const auto first = code.bindings.begin() + call->bindings.first;
  return std::find(first, first + call->bindings.count, buffer) != first + call->bindings.count;
}

std::size_t last_before(const Program& program, std::size_t at, int buffer, bool is_call) {
  while (at-- > 0) {
    const program::Instruction& instruction = program.main.instructions[at];
    if (is_call && !std::holds_alternative<program::Call>(instruction)) continue;
    if (names(program, instruction, buffer)) return at;
  }
  return 0;
}

/// The buffers that hold a shard's parameters for ops: itself, and what it is gathered into.
std::vector<int> copies_of(const Program& program, int shard) {
  std::vector<int> copies{shard};
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* run = std::get_if<program::Run>(&instruction);
    if (run == nullptr || run->kernel != program::Kernel::gather_own || !names(program, instruction, shard)) continue;
    copies.push_back(program.main.accesses[run->accesses.first + run->accesses.count - 1].buffer);
  }
  return copies;
}

std::vector<Update> updates_of(const Program& program) {
  std::vector<Update> updates;
  const std::vector<program::Instruction>& list = program.main.instructions;
  for (std::size_t at = 0; at < list.size(); ++at) {
    const auto* run = std::get_if<program::Run>(&list[at]);
    if (run == nullptr || run->kernel != program::Kernel::update) continue;
    const program::Access* operands = &program.main.accesses[run->accesses.first];
    Update update{.at = at, .gradient = operands[1].buffer};
    update.last_change = last_before(program, at, update.gradient, false);
    for (const int copy : copies_of(program, operands[0].buffer)) {
      update.last_pass = std::max(update.last_pass, last_before(program, at, copy, true));
    }
    updates.push_back(update);
  }
  return updates;
}

/// An instruction goes before an earlier one; sections end where they did.
void move_before(Program& program, std::size_t at, std::size_t earlier) {
  const auto begin = program.main.instructions.begin();
  std::rotate(begin + static_cast<std::ptrdiff_t>(earlier), begin + static_cast<std::ptrdiff_t>(at),
              begin + static_cast<std::ptrdiff_t>(at) + 1);
  for (program::Section& section : program.sections) {
    for (std::size_t* end : {&section.begin, &section.end}) *end += *end > earlier && *end <= at ? 1 : 0;
  }
}

/// What follows if a unit is updated before all of its gradients are there: the rest goes to a new gradient shard, with
/// which the unit is updated again.
void repeat_with_other_gradients(Program& program, const Update& update) {
  program::Code& code = program.main;
  program::Run again = std::get<program::Run>(code.instructions[update.at]);
  const auto other = static_cast<int>(code.buffers.size());
  code.buffers.push_back(code.buffers[static_cast<std::size_t>(update.gradient)]);
  const auto first = static_cast<std::uint32_t>(code.accesses.size());
  for (std::uint32_t a = 0; a < again.accesses.count; ++a) {
    code.accesses.push_back(program::Access(code.accesses[again.accesses.first + a]));
  }
  code.accesses[first + 1].buffer = other;
  again.accesses.first = first;
  program::Run zero{.kernel = program::Kernel::zero};
  zero.accesses = {static_cast<std::uint32_t>(code.accesses.size()), 1};
  code.accesses.push_back({.buffer = other, .how = program::How::write});
  const std::vector<program::Instruction> added{program::Allocate{other}, zero, again, program::Free{other}};
  code.instructions.insert(code.instructions.begin() + static_cast<std::ptrdiff_t>(update.at) + 1, added.begin(),
                           added.end());
  for (program::Section& section : program.sections) {
    for (std::size_t* end : {&section.begin, &section.end}) *end += *end > update.at ? added.size() : 0;
  }
}

}  // namespace

TEST_CASE("a unit is updated once, when nothing reduces its gradients or gathers it any more") {
  for (const bool tied : {false, true}) {
    for (const Wrap& wrap : {Wrap{WrapLayers{}}, Wrap{WrapGroups{2}}, Wrap{WrapNothing{}}}) {
      Job job = tiny_job("full-shard", {.replicate = 1, .shard = 4});
      job.wrap = wrap;
      const Graph graph = tiny_graph({.blocks = 3, .tied = tied});
      const auto schedule = schedule_of(job, graph);
      CAPTURE(tied);
      CAPTURE(wrap.index());
      for (int unit = 0; unit < static_cast<int>(lay_out_units(graph, job).units.size()); ++unit) {
        CAPTURE(unit);
        const auto steps = positions(schedule, Do::step, unit);
        REQUIRE(steps.size() == 1);
        CHECK(positions(schedule, Do::finish, unit).back() < steps.front());
        CHECK(positions(schedule, Do::release, unit).back() < steps.front());
      }
      CHECK(schedule.back().what == Do::step);
      CHECK(schedule.back().unit == -1);
    }
  }
}

TEST_CASE("the reduction of the next unit starts before an update, which runs beside it") {
  Job job = tiny_job("full-shard", {.replicate = 1, .shard = 4});
  job.reduce_finish = ReduceFinish::end;
  const Graph graph = tiny_graph({.blocks = 3});  // embed, layers.0 to 2, head: units 0 to 4
  const auto schedule = schedule_of(job, graph);
  for (const int unit : {4, 3, 2, 1}) {
    CAPTURE(unit);
    CHECK(positions(schedule, Do::reduce, unit - 1).front() + 1 == positions(schedule, Do::step, unit).front());
  }
}

TEST_CASE("a bucket is updated when the sum of the next one has started, and the last one at the end of the step") {
  for (const Mesh& mesh : {Mesh{.replicate = 2, .shard = 1}, Mesh{.replicate = 2, .shard = 2}}) {
    const Job job = tiny_job(mesh.shard == 1 ? "no-shard" : "hybrid-shard", mesh);
    const auto schedule = schedule_of(job, tiny_graph({.blocks = 3}));
    CAPTURE(mesh.shard);
    CHECK(updated_in_backward(schedule) == std::vector<int>{4, 3, 2, 1});
    for (const int unit : {4, 3, 2, 1}) {
      const auto next = std::ranges::find(schedule, std::vector<int>{unit - 1}, &Instruction::bucket);
      CHECK(next - schedule.begin() < static_cast<std::ptrdiff_t>(positions(schedule, Do::step, unit).front()));
    }
  }
}

TEST_CASE("what needs all gradients at once is refused by name, with what would answer") {
  CHECK(refusal_of("grad_accum", "2").find("with --grad-accum 2 (") != std::string::npos);
  CHECK(refusal_of("loss_scale", "1024").find("with --loss-scale 1024 (") != std::string::npos);
  CHECK(refusal_of("precision", "fp16-mixed").find("use --loss-scale none") != std::string::npos);
  CHECK(refusal_of("gradient_mask", "keep:0.5").find("with --gradient-mask keep:0.5 (") != std::string::npos);
  CHECK(refusal_of("offload", "optimizer").find("with --offload optimizer (") != std::string::npos);
  CHECK(refusal_of("optimizer", "adafactor").empty());
  CHECK(refusal_of("optimizer", "adamw", /*clip=*/true).find("add --no-clip, or --clip 0 to run") != std::string::npos);
}

TEST_CASE("gradient shards of one unit or two exist at once, instead of all") {
  CHECK(most_gradient_shards(program_of("llama/8 1x1 cuda:90:132")) == 1);
  CHECK(most_gradient_shards(program_of("llama/8 1x4 cuda:90:132")) == 1);
  CHECK(most_gradient_shards(program_of("llama/8 1x4 cuda:90:132 sharding=no-shard bucket_bytes=1")) == 2);
}

TEST_CASE("an update before the last change of its gradients is found, in the same buffer or with a second one") {
  for (const char* line : {"llama/2 1x4 cuda:90:132", "llama/2 1x1 cpu:1:1", "gpt2/2 1x2 cpu:1:1 wrap=none",
                           "llama/2 2x2 cpu:1:1 sharding=hybrid-shard bucket_bytes=1"}) {
    CAPTURE(line);
    const Program sound = program_of(line);
    REQUIRE(program::fault_of(sound) == std::nullopt);
    for (const Update& update : updates_of(sound)) {
      Program early = sound;
      move_before(early, update.at, update.last_change);
      // Told of the gradients: they are touched after that, or (made by the pass that is still to come) aren't there.
      CHECK(program::fault_of(early).value_or("").find(": gradient shard, w") != std::string::npos);
      Program twice = sound;
      repeat_with_other_gradients(twice, update);
      CHECK(program::fault_of(twice).value_or("").find("which this step has updated") != std::string::npos);
    }
  }
}

TEST_CASE("parameters that backward reads after their update are found, as copies and where they lie") {
  // Layers 0 and 2 are a unit. Its last gradients come before the backward pass of the frozen layer, which reads it.
  const std::string job = " wrap=pattern:*.layers,*.layers.1 freeze=layers:0";
  const auto fault = [&](const std::string& place) {
    Program spoiled = program_of("llama/3 " + place + job);
    REQUIRE(program::fault_of(spoiled) == std::nullopt);
    const std::vector<Update> updates = updates_of(spoiled);
    const auto late = std::ranges::find_if(updates, [](const Update& u) { return u.last_change < u.last_pass; });
    REQUIRE(late != updates.end());
    move_before(spoiled, late->at, late->last_pass);
    return program::fault_of(spoiled).value_or("");
  };
  CHECK(fault("1x4 cuda:90:132").find("whose source was written since it was copied") != std::string::npos);
  CHECK(fault("1x1 cpu:1:1").find("which this step has updated") != std::string::npos);
}

}  // namespace vramfit
