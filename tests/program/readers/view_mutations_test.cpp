// The check of views is checked: programs with one view, or one part of a gradient, that isn't what it should be.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "program/make_program.h"
#include "program/readers/check.h"
#include "tests/support/job_line.h"

namespace vramfit::program {

namespace {

/// Packed matrices by rows (phi3) and by columns (gpt2), padded shards, kept slices, direct and reduced gradients.
const std::vector<std::string> kJobs{
    "llama/2 1x1 cpu:1:1 precision=fp32",
    "llama/2 1x4 cuda:90:132 precision=bf16-mixed grad_accum=3 accumulate=unsharded",
    "llama/2 1x4 cuda:90:132 reshard=2 wrap=none checkpointing=full",
    "gpt2/2 1x1 cpu:1:1 precision=fp32",
    "gpt2/2 1x3 cpu:1:1 precision=bf16-mixed grad_accum=2",
    "phi3/2 1x3 cuda:80:108 precision=bf16-mixed",
    "gemma3_text/2 2x3 cpu:1:1 wrap=size:6000",
};

Program program_of(const std::string& line) {
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line(line));
  return make_program(
      {.graph = job.graph, .job = job.job, .device = job.cluster.card.device, .coords = {}, .run = {.clip = job.clip}});
}

struct Site {
  int block = -1;                     // -1: the main list
  std::size_t instruction = 0;        // of a run or a collective
  std::size_t access = 0, other = 0;  // in Code::accesses
};

Code& code_of(Program& program, int block) {
  return block < 0 ? program.main : program.blocks[static_cast<std::size_t>(block)].code;
}

/// Of the program's steps and its blocks, each access that has a view.
void each_view(Program& program, const std::function<void(const Code&, const Site&, const Instruction&)>& visit) {
  for (int block = -1; block < static_cast<int>(program.blocks.size()); ++block) {
    const Code& code = code_of(program, block);
    for (std::size_t i = block < 0 ? program.sections.front().end : 0; i < code.instructions.size(); ++i) {
      const auto* run = std::get_if<Run>(&code.instructions[i]);
      const auto* start = std::get_if<Start>(&code.instructions[i]);
      if (run == nullptr && start == nullptr) continue;
      const Range range = run != nullptr ? run->accesses : start->accesses;
      for (std::size_t a = range.first; a < range.first + range.count; ++a) {
        if (code.accesses[a].view >= 0) visit(code, {block, i, a}, code.instructions[i]);
      }
    }
  }
}

const View& view_at(const Program& program, const Code& code, std::size_t access) {
  return program.views[static_cast<std::size_t>(code.accesses[access].view)];
}

std::vector<Site> all_views(Program& program) {
  std::vector<Site> sites;
  each_view(program, [&](const Code& code, const Site& site, const Instruction&) {
    if (reach(view_at(program, code, site.access)) > 0) sites.push_back(site);
  });
  return sites;
}

/// Gives an access one view of its own.
void set_view(Program& program, const Site& site, View view) {
  view.parts = 1;
  program.views.push_back(view);
  code_of(program, site.block).accesses[site.access].view = static_cast<int>(program.views.size()) - 1;
}

void move_beyond(Program& program, const Site& site) {
  View view = view_at(program, code_of(program, site.block), site.access);
  view.offset += std::int64_t{1} << 40U;
  set_view(program, site, view);
}

void move_before(Program& program, const Site& site) {
  View view = view_at(program, code_of(program, site.block), site.access);
  view.offset -= std::int64_t{1} << 40U;
  set_view(program, site, view);
}

void change_dtype(Program& program, const Site& site) {
  View view = view_at(program, code_of(program, site.block), site.access);
  view.dtype = view.dtype == Dtype::f16 ? Dtype::f32 : Dtype::f16;
  set_view(program, site, view);
}

/// Zeros beyond a gradient that an op writes whole.
std::vector<Site> paddings(Program& program) {
  std::vector<Site> sites;
  each_view(program, [&](const Code& code, const Site& site, const Instruction& instruction) {
    const auto* run = std::get_if<Run>(&instruction);
    if (run != nullptr && run->kernel == Kernel::zero && view_at(program, code, site.access).rows > 0)
      sites.push_back(site);
  });
  return sites;
}

void drop(Program& program, const Site& site) { code_of(program, site.block).instructions[site.instruction] = Mark{}; }

/// Gradients that ops write, one after the other, to different slices of one buffer.
std::vector<Site> neighbouring_slices(Program& program) {
  std::vector<Site> sites, writes;
  each_view(program, [&](const Code& code, const Site& site, const Instruction& instruction) {
    const auto* run = std::get_if<Run>(&instruction);
    const Access& access = code.accesses[site.access];
    if (run == nullptr || run->kernel != Kernel::backward || access.value >= 0 || access.how != How::write) return;
    for (const Site& before : writes) {
      if (before.block != site.block || code.accesses[before.access].buffer != access.buffer) continue;
      const View &a = view_at(program, code, before.access), &b = view_at(program, code, site.access);
      if (a.pitch != b.pitch || a.offset == b.offset) continue;
      sites.push_back({site.block, site.instruction, site.access, before.access});
    }
    writes.push_back(site);
  });
  return sites;
}

/// The later one is written where the earlier one is.
void write_over(Program& program, const Site& site) {
  Code& code = code_of(program, site.block);
  code.accesses[site.access].view = code.accesses[site.other].view;
}

/// Whole gradients that an op writes: the last row is left out.
std::vector<Site> whole_gradients(Program& program) {
  std::vector<Site> sites;
  each_view(program, [&](const Code& code, const Site& site, const Instruction& instruction) {
    const auto* run = std::get_if<Run>(&instruction);
    if (run == nullptr || run->kernel != Kernel::zero || site.block < 0) return;
    // The run that follows zeros beyond it writes the gradient.
    const int home = code.accesses[site.access].buffer;
    for (std::size_t i = site.instruction + 1; i < code.instructions.size(); ++i) {
      const auto* writing = std::get_if<Run>(&code.instructions[i]);
      if (writing == nullptr || writing->kernel != Kernel::backward) continue;
      for (std::size_t a = writing->accesses.first; a < writing->accesses.first + writing->accesses.count; ++a) {
        if (code.accesses[a].buffer == home && code.accesses[a].how == How::write) sites.push_back({site.block, i, a});
      }
      break;
    }
  });
  return sites;
}

void leave_out_a_row(Program& program, const Site& site) {
  View view = view_at(program, code_of(program, site.block), site.access);
  --view.rows;
  set_view(program, site, view);
}

/// Gathers of several parameters.
std::vector<Site> gathers(Program& program) {
  std::vector<Site> sites;
  each_view(program, [&](const Code& code, const Site& site, const Instruction& instruction) {
    const auto* start = std::get_if<Start>(&instruction);
    if (start != nullptr && view_at(program, code, site.access).parts > 1) sites.push_back(site);
  });
  return sites;
}

/// All but the first are gathered. The list that begins with the second is one as well.
void gather_fewer(Program& program, const Site& site) { ++code_of(program, site.block).accesses[site.access].view; }

struct Spoiling {
  const char* what;
  std::vector<Site> (*sites)(Program&);
  void (*apply)(Program&, const Site&);
};

const std::vector<Spoiling> kSpoilings{
    {"a view beyond the end", all_views, move_beyond},
    {"a view before the begin", all_views, move_before},
    {"a view of another dtype", all_views, change_dtype},
    {"padding that is not zeroed", paddings, drop},
    {"a gradient without its last row", whole_gradients, leave_out_a_row},
    {"a slice written over another", neighbouring_slices, write_over},
    {"a gather without a parameter", gathers, gather_fewer},
};

}  // namespace

TEST_CASE("a view that isn't what it should be is found") {
  std::vector<int> tried(kSpoilings.size());
  for (const std::string& line : kJobs) {
    CAPTURE(line);
    Program sound = program_of(line);
    REQUIRE(fault_of(sound).value_or("") == "");
    for (std::size_t k = 0; k < kSpoilings.size(); ++k) {
      const std::vector<Site> sites = kSpoilings[k].sites(sound);
      const std::size_t step = sites.size() / 16 + 1;  // some 16 of each kind
      for (std::size_t s = 0; s < sites.size(); s += step) {
        Program spoiled = sound;
        kSpoilings[k].apply(spoiled, sites[s]);
        ++tried[k];
        INFO(std::string(kSpoilings[k].what)
             << ", block " << sites[s].block << ", instruction " << sites[s].instruction);
        CHECK(fault_of(spoiled) != std::nullopt);
      }
    }
  }
  for (std::size_t k = 0; k < tried.size(); ++k) CHECK_MESSAGE(tried[k] >= 3, kSpoilings[k].what);
}

TEST_CASE("what is wrong with a view is said") {
  const auto fault = [](void (*apply)(Program&, const Site&)) {
    Program program = program_of(kJobs.front());
    apply(program, all_views(program).front());
    return fault_of(program).value_or("");
  };
  CHECK(fault(move_beyond).find("beyond its end") != std::string::npos);
  CHECK(fault(change_dtype).find("as fp16, which is fp32") != std::string::npos);
}

TEST_CASE("a program that is lowered without labels has no views") {
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line(kJobs.front()));
  LowerInputs inputs{.graph = job.graph, .job = job.job, .device = job.cluster.card.device, .coords = {}};
  CHECK(!lower(inputs).views.empty());
  inputs.labels = false;
  const Program program = lower(inputs);
  CHECK(program.views.empty());
  CHECK(program.main.offsets.empty());
}

}  // namespace vramfit::program
