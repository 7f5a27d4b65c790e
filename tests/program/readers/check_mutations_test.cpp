// The check is checked: programs of a cover of jobs, each spoiled in one place, wherever that can be done. What was
// sound must be unsound then.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "program/make_program.h"
#include "program/readers/check.h"
#include "tests/support/job_line.h"
#include "tests/support/pairwise.h"

namespace vramfit::program {

namespace {

using Instructions = std::vector<Instruction>;

/// Positions in the main list, or in a block's.
struct Site {
  int block = -1;
  std::size_t at = 0, other = 0;
  int from = -1, to = -1;  // buffers, or an axis
};

struct Spoiling {
  const char* what;
  std::vector<Site> (*sites)(const Program&);
  void (*apply)(Program&, const Site&);
};

const Code& code_of(const Program& program, int block) {
  return block < 0 ? program.main : program.blocks[static_cast<std::size_t>(block)].code;
}
Code& code_of(Program& program, int block) {
  return block < 0 ? program.main : program.blocks[static_cast<std::size_t>(block)].code;
}

int access_count(const Code& code, Range range, int buffer) {
  const auto first = code.accesses.begin() + range.first;
  return static_cast<int>(
      std::count_if(first, first + range.count, [&](const Access& a) { return a.buffer == buffer; }));
}

/// Whether a run or a collective names the buffer.
bool names(const Code& code, const Instruction& instruction, int buffer) {
  if (const auto* run = std::get_if<Run>(&instruction)) return access_count(code, run->accesses, buffer) > 0;
  if (const auto* start = std::get_if<Start>(&instruction)) return access_count(code, start->accesses, buffer) > 0;
  return false;
}

/// Or a call's block does. A block that recomputes may be bound to weights that it has no use for.
bool touches(const Program& program, const Code& code, const Instruction& instruction, int buffer) {
  const auto* call = std::get_if<Call>(&instruction);
  if (call == nullptr) return names(code, instruction, buffer);
  const std::vector<Access>& accesses = code_of(program, call->block).accesses;
  for (std::uint32_t slot = 0; slot < call->bindings.count; ++slot) {
    if (code.bindings[call->bindings.first + slot] != buffer) continue;
    return std::ranges::any_of(accesses, [&](const Access& a) { return a.buffer == static_cast<int>(slot); });
  }
  return false;
}

/// Calls `visit` for each instruction of one kind after load, and for those of blocks.
template <typename What>
void each(const Program& program, const std::function<void(int block, std::size_t at, const What&)>& visit) {
  for (int block = -1; block < static_cast<int>(program.blocks.size()); ++block) {
    const Instructions& list = code_of(program, block).instructions;
    for (std::size_t i = block < 0 ? program.sections.front().end : 0; i < list.size(); ++i) {
      if (const auto* what = std::get_if<What>(&list[i])) visit(block, i, *what);
    }
  }
}

template <typename What>
std::vector<Site> all(const Program& program) {
  std::vector<Site> sites;
  each<What>(program, [&](int block, std::size_t at, const What&) { sites.push_back({block, at}); });
  return sites;
}

void drop(Program& program, const Site& site) { code_of(program, site.block).instructions[site.at] = Mark{}; }

/// Frees, and the last use before each in the same section: the free goes before it.
std::vector<Site> early_frees(const Program& program) {
  std::vector<Site> sites;
  each<Free>(program, [&](int block, std::size_t at, const Free& what) {
    const Code& code = code_of(program, block);
    std::size_t begin = 0;
    for (const Section& section : program.sections) {
      if (block < 0 && section.begin <= at) begin = section.begin;
    }
    for (std::size_t i = at; i-- > begin;) {
      if (!touches(program, code, code.instructions[i], what.buffer)) continue;
      if (!std::holds_alternative<Call>(code.instructions[i])) sites.push_back({block, i, at});
      return;
    }
  });
  return sites;
}

void move_before(Program& program, const Site& site) {
  Instructions& list = code_of(program, site.block).instructions;
  const auto begin = list.begin();
  std::rotate(begin + static_cast<std::ptrdiff_t>(site.at), begin + static_cast<std::ptrdiff_t>(site.other),
              begin + static_cast<std::ptrdiff_t>(site.other) + 1);
  if (site.block >= 0) return;
  for (Section& section : program.sections) {
    for (std::size_t* end : {&section.begin, &section.end}) *end += *end > site.at && *end <= site.other ? 1 : 0;
  }
}

std::optional<Start> start_of(const Program& program, int token) {
  for (const Instruction& instruction : program.main.instructions) {
    const auto* start = std::get_if<Start>(&instruction);
    if (start != nullptr && start->token == token) return *start;
  }
  return std::nullopt;
}

/// Waits that follow each other, where something between them touches what the first waits for.
std::vector<Site> neighbouring_waits(const Program& program) {
  std::vector<Site> sites;
  const std::vector<Site> waits = all<Wait>(program);
  const Instructions& list = program.main.instructions;
  for (std::size_t w = 0; w + 1 < waits.size(); ++w) {
    const std::optional<Start> start = start_of(program, std::get<Wait>(list[waits[w].at]).token);
    bool is_needed = false;
    for (std::size_t i = waits[w].at; i < waits[w + 1].at; ++i) {
      for (std::uint32_t a = 0; a < start->accesses.count; ++a) {
        const int held = program.main.accesses[start->accesses.first + a].buffer;
        is_needed = is_needed || touches(program, program.main, list[i], held);
      }
    }
    if (is_needed) sites.push_back({-1, waits[w].at, waits[w + 1].at});
  }
  return sites;
}

void swap_instructions(Program& program, const Site& site) {
  Instructions& list = code_of(program, site.block).instructions;
  std::swap(list[site.at], list[site.other]);
}

/// Gathers and their waits.
std::vector<Site> gathers(const Program& program) {
  std::vector<Site> sites;
  each<Start>(program, [&](int block, std::size_t at, const Start& start) {
    if (start.collective != Collective::all_gather) return;
    each<Wait>(program, [&](int, std::size_t wait, const Wait& what) {
      if (what.token == start.token) sites.push_back({block, at, wait});
    });
  });
  return sites;
}

void drop_both(Program& program, const Site& site) {
  drop(program, {site.block, site.at});
  drop(program, {site.block, site.other});
}

/// What a run of a block makes and the block frees, and a value that is there by then and read later: the first takes
/// over the storage of the second.
void add_take_overs(const Program& program, int block, std::size_t at, int made, std::vector<Site>& sites) {
  const Code& code = code_of(program, block);
  const Instructions& list = code.instructions;
  const auto ends = [&](int buffer) {
    return std::find_if(list.begin(), list.end(), [&](const Instruction& i) {
      const auto* end = std::get_if<Free>(&i);
      return end != nullptr && end->buffer == buffer;
    });
  };
  if (made < program.blocks[static_cast<std::size_t>(block)].slots || ends(made) == list.end()) return;
  for (std::size_t later = at + 1; later < list.size(); ++later) {
    const auto* run = std::get_if<Run>(&list[later]);
    if (run == nullptr) continue;
    for (std::uint32_t a = 0; a < run->accesses.count; ++a) {
      const Access& read = code.accesses[run->accesses.first + a];
      const auto is_made = [&](const Instruction& i) {
        const auto* allocation = std::get_if<Allocate>(&i);
        return allocation != nullptr && allocation->buffer == read.buffer;
      };
      const bool is_there = std::find_if(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(at), is_made) !=
                            list.begin() + static_cast<std::ptrdiff_t>(at);
      if (read.how == How::read && read.value >= 0 && read.buffer >= 0 && read.buffer != made && is_there) {
        sites.push_back({block, at, later, made, read.buffer});
      }
    }
  }
}

std::vector<Site> take_overs(const Program& program) {
  std::vector<Site> sites;
  each<Run>(program, [&](int block, std::size_t at, const Run& run) {
    if (block < 0) return;
    const Code& code = code_of(program, block);
    for (std::uint32_t a = 0; a < run.accesses.count; ++a) {
      const Access& access = code.accesses[run.accesses.first + a];
      if (access.how == How::write && access.value >= 0) add_take_overs(program, block, at, access.buffer, sites);
    }
  });
  return sites;
}

void take_over(Program& program, const Site& site) {
  Code& code = code_of(program, site.block);
  for (Instruction& instruction : code.instructions) {
    const auto* allocation = std::get_if<Allocate>(&instruction);
    const auto* end = std::get_if<Free>(&instruction);
    const bool is_gone =
        (allocation != nullptr && allocation->buffer == site.from) || (end != nullptr && end->buffer == site.from);
    if (is_gone) instruction = Mark{};
  }
  for (Access& access : code.accesses) {
    if (access.buffer == site.from) access.buffer = site.to;
  }
}

/// Updates, and what last changes the gradient that each reads.
std::vector<Site> updates(const Program& program) {
  std::vector<Site> sites;
  each<Run>(program, [&](int block, std::size_t at, const Run& run) {
    if (run.kernel != Kernel::update) return;
    for (std::uint32_t a = 0; a < run.accesses.count; ++a) {
      const int buffer = program.main.accesses[run.accesses.first + a].buffer;
      if (buffer < 0 || program.main.buffers[static_cast<std::size_t>(buffer)].category != Category::gradients)
        continue;
      for (std::size_t i = std::min(at, program.sections.back().begin); i-- > program.sections.front().end;) {
        if (!touches(program, program.main, program.main.instructions[i], buffer)) continue;
        sites.push_back({block, i, at});
        break;
      }
    }
  });
  return sites;
}

/// Gathers and reductions, and axes of another size.
std::vector<Site> other_axes(const Program& program) {
  std::vector<Site> sites;
  each<Start>(program, [&](int block, std::size_t at, const Start& start) {
    if (start.collective == Collective::all_reduce) return;
    const std::int64_t members = program.groups[static_cast<std::size_t>(start.axis)].members;
    for (int axis = 0; axis < kAxes; ++axis) {
      if (program.groups[static_cast<std::size_t>(axis)].members != members) sites.push_back({block, at, 0, axis});
    }
  });
  return sites;
}

void change_axis(Program& program, const Site& site) {
  std::get<Start>(program.main.instructions[site.at]).axis = static_cast<Axis>(site.from);
}

const std::vector<Spoiling> kSpoilings{
    {"a dropped free", all<Free>, drop},
    {"a free before the last use", early_frees, move_before},
    {"a dropped wait", all<Wait>, drop},
    {"swapped waits", neighbouring_waits, swap_instructions},
    {"a dropped gather", gathers, drop_both},
    {"a take-over of a value still read", take_overs, take_over},
    {"an update before the last change of its gradient", updates, move_before},
    {"an axis of another size", other_axes, change_axis},
};

/// Starts that follow each other on one axis and differ.
std::vector<Site> neighbouring_starts(const Program& program) {
  std::vector<Site> sites, starts = all<Start>(program);
  const auto start = [&](const Site& site) { return std::get<Start>(program.main.instructions[site.at]); };
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
    const Start a = start(starts[s]), b = start(starts[s + 1]);
    if (a.axis == b.axis && (a.collective != b.collective || a.bytes != b.bytes))
      sites.push_back({-1, starts[s].at, starts[s + 1].at});
  }
  return sites;
}

const std::vector<std::pair<std::string, std::vector<std::string>>> kFields{
    {"sharding", {"full-shard", "shard-grad-op", "hybrid-shard", "no-shard"}},
    {"checkpointing", {"none", "full", "every:2"}},
    {"precision", {"fp32", "bf16-mixed", "bf16-pure"}},
    {"grad_accum", {"1", "2", "4"}},
    {"accumulate", {"sharded", "unsharded"}},
    {"reshard", {"default", "never", "2"}},
    {"wrap", {"layer", "layers:2", "none", "size:6000"}},
    {"freeze", {"none", "layers:0"}},
    {"loss", {"full", "chunked:2"}},
    {"optimizer_in_backward", {"off", "on"}}};
const std::vector<std::string> kModels{"llama/2", "gemma2/2", "gemma3_text/2", "gpt2/2", "bert/2"};
const std::vector<std::string> kPlaces{"1x1 cuda:90:132", "1x2 cpu:1:1", "1x4 cuda:80:108", "2x2 cpu:1:1",
                                       "1x8 cuda:90:132"};

std::string line_of(const std::vector<int>& row) {
  const auto pick = [&](const std::vector<std::string>& from, std::size_t axis) {
    return from[static_cast<std::size_t>(row[axis])];
  };
  std::string line = pick(kModels, 0) + " " + pick(kPlaces, 1);
  for (std::size_t f = 0; f < kFields.size(); ++f) {
    line += fmt::format(" {}={}", kFields[f].first, pick(kFields[f].second, f + 2));
  }
  return line.ends_with("in_backward=on") ? line + " clip=off" : line;
}

bool is_accepted(const std::vector<int>& row) {
  try {
    (void)testing::resolved(testing::parse_job_line(line_of(row)));
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> cover() {
  std::vector<int> sizes{static_cast<int>(kModels.size()), static_cast<int>(kPlaces.size())};
  for (const auto& field : kFields) sizes.push_back(static_cast<int>(field.second.size()));
  std::vector<std::string> lines;
  for (const std::vector<int>& row : testing::pairwise_cover(sizes, 1, 0, is_accepted)) lines.push_back(line_of(row));
  return lines;
}

Program program_of(const std::string& line) {
  const testing::ResolvedJob job = testing::resolved(testing::parse_job_line(line));
  return make_program(
      {.graph = job.graph, .job = job.job, .device = job.cluster.card.device, .coords = {}, .run = {.clip = job.clip}});
}

std::vector<Site> some(std::vector<Site> sites, std::size_t most, std::mt19937_64& random) {
  std::shuffle(sites.begin(), sites.end(), random);
  if (sites.size() > most) sites.resize(most);
  return sites;
}

/// At most `most` places of each kind in each program.
void spoil(std::size_t most) {
  std::mt19937_64 random(1);
  const std::vector<std::string> lines = cover();
  std::vector<int> tried(kSpoilings.size() + 1);
  for (const std::string& line : lines) {
    CAPTURE(line);
    const Program sound = program_of(line);
    REQUIRE(fault_of(sound) == std::nullopt);
    for (std::size_t k = 0; k < kSpoilings.size(); ++k) {
      for (const Site& site : some(kSpoilings[k].sites(sound), most, random)) {
        Program spoiled = sound;
        kSpoilings[k].apply(spoiled, site);
        ++tried[k];
        INFO(std::string(kSpoilings[k].what)
             << ", block " << site.block << ", instructions " << site.at << " and " << site.other);
        CHECK(fault_of(spoiled) != std::nullopt);
      }
    }
    for (const Site& site : some(neighbouring_starts(sound), most, random)) {
      std::vector<Program> classes{sound, sound};
      swap_instructions(classes.back(), site);
      ++tried.back();
      INFO("classes of ranks in different order, instructions " << site.at << " and " << site.other);
      CHECK(fault_between(classes) != std::nullopt);
    }
  }
  for (std::size_t k = 0; k < tried.size(); ++k) {
    const std::string what = k < kSpoilings.size() ? kSpoilings[k].what : "classes in different order";
    MESSAGE(lines.size() << " jobs: " << what << ", " << tried[k] << " times");
    CHECK_MESSAGE(tried[k] > 10, what);
  }
}

}  // namespace

TEST_CASE("a program that is spoiled in one place is found unsound") { spoil(2); }

TEST_CASE("a value whose storage another takes over is not read as what it was") {
  const Program sound = program_of("llama/1 1x1 cpu:1:1");
  int by_value = 0;
  for (const Site& site : take_overs(sound)) {
    Program spoiled = sound;
    take_over(spoiled, site);
    by_value += fault_of(spoiled).value_or("").find("which holds another value by now") != std::string::npos ? 1 : 0;
  }
  CHECK(by_value > 0);
}

TEST_SUITE("full") {
  TEST_CASE("a program that is spoiled in any one place is found unsound") { spoil(1000); }
}

}  // namespace vramfit::program
