// The executor has no second account of what it does: programs that no lowering would write, changed at random in ways
// that stay sound, run and allocate what they say.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "executor/meter/meter.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/bytes.h"
#include "program/readers/check.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit::testing {

namespace {

using program::Allocate;
using program::Code;
using program::Free;
using program::How;
using program::Program;
using program::Run;
using Random = std::mt19937_64;

constexpr std::uint64_t kSeed = 20261122;
constexpr int kChanges = 200, kChangesPerRun = 10, kMostTries = 400;
constexpr int kChangedSteps = 2;

std::size_t below(Random& random, std::size_t count) { return random() % count; }

/// The main list, or one of the blocks.
Code& random_code(Program& program, Random& random) {
  const std::size_t n = below(random, program.blocks.size() + 1);
  return n == 0 ? program.main : program.blocks[n - 1].code;
}

template <typename What>
std::optional<std::size_t> random_position(const Code& code, Random& random) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < code.instructions.size(); ++i) {
    if (std::holds_alternative<What>(code.instructions[i])) positions.push_back(i);
  }
  if (positions.empty()) return std::nullopt;
  return positions[below(random, positions.size())];
}

/// Moves a free behind what follows it.
bool free_later(Program& program, Random& random) {
  Code& code = random_code(program, random);
  const auto from = random_position<Free>(code, random);
  if (!from) return false;
  const auto begin = code.instructions.begin() + static_cast<std::ptrdiff_t>(*from);
  const auto most = std::min<std::ptrdiff_t>(12, code.instructions.end() - begin - 1);
  if (most < 1) return false;
  std::rotate(begin, begin + 1, begin + 2 + static_cast<std::ptrdiff_t>(below(random, static_cast<std::size_t>(most))));
  return true;
}

/// Lets two allocations change places.
bool swap_allocations(Program& program, Random& random) {
  Code& code = random_code(program, random);
  const auto first = random_position<Allocate>(code, random);
  if (!first) return false;
  for (std::size_t i = *first + 1; i < std::min(*first + 8, code.instructions.size()); ++i) {
    if (!std::holds_alternative<Allocate>(code.instructions[i])) continue;
    std::swap(code.instructions[*first], code.instructions[i]);
    return true;
  }
  return false;
}

/// What a backward run writes over and reads besides: storage that it takes over; -1: none, or more than one.
int taken_over(const Code& code, const Run& run) {
  int taken = -1, written = 0;
  for (std::uint32_t w = 0; w < run.accesses.count; ++w) {
    const program::Access& access = code.accesses[run.accesses.first + w];
    if ((access.how != How::write && access.how != How::pass) || access.buffer < 0) continue;
    for (std::uint32_t r = 0; r < run.accesses.count; ++r) {
      const program::Access& other = code.accesses[run.accesses.first + r];
      if (other.how != How::read || other.buffer != access.buffer) continue;
      taken = access.buffer;
    }
  }
  for (std::uint32_t i = 0; i < run.accesses.count; ++i) {
    const program::Access& access = code.accesses[run.accesses.first + i];
    if (access.buffer == taken && access.how != How::read) ++written;
  }
  return written == 1 ? taken : -1;
}

struct TakeOver {
  std::size_t block = 0, run = 0, free = 0;  // positions of the run, and of the free of what it took
  int buffer = -1;
};

/// Those of storage that the block frees itself, and whose bytes it knows: a slot's are the caller's.
std::vector<TakeOver> take_overs(const Program& program) {
  std::vector<TakeOver> all;
  for (std::size_t b = 0; b < program.blocks.size(); ++b) {
    const Code& code = program.blocks[b].code;
    for (std::size_t i = 0; i < code.instructions.size(); ++i) {
      const auto* run = std::get_if<Run>(&code.instructions[i]);
      const int taken = run != nullptr && run->kernel == program::Kernel::backward ? taken_over(code, *run) : -1;
      if (taken < program.blocks[b].slots) continue;
      for (std::size_t f = i + 1; f < code.instructions.size(); ++f) {
        const auto* end = std::get_if<Free>(&code.instructions[f]);
        if (end != nullptr && end->buffer == taken) all.push_back({b, i, f, taken});
      }
    }
  }
  return all;
}

/// Gives a gradient that takes over another value's storage storage of its own: what it took is freed after the run,
/// and all that follows means the new buffer.
bool make_fresh(Program& program, Random& random) {
  const std::vector<TakeOver> all = take_overs(program);
  if (all.empty()) return false;
  const TakeOver chosen = all[below(random, all.size())];
  Code& code = program.blocks[chosen.block].code;
  const Run run = std::get<Run>(code.instructions[chosen.run]);
  const auto fresh = static_cast<int>(code.buffers.size());
  code.buffers.push_back(code.buffers[static_cast<std::size_t>(chosen.buffer)]);
  std::get<Free>(code.instructions[chosen.free]).buffer = fresh;
  for (std::size_t i = run.accesses.first; i < code.accesses.size(); ++i) {
    program::Access& access = code.accesses[i];
    const bool is_read_by_run = i < run.accesses.first + run.accesses.count && access.how == How::read;
    if (access.buffer != chosen.buffer || is_read_by_run) continue;
    access.buffer = fresh;
    if (access.how == How::pass) access.how = How::write;  // it is copied now
  }
  const auto position = code.instructions.begin() + static_cast<std::ptrdiff_t>(chosen.run);
  code.instructions.insert(position + 1, Free{chosen.buffer});
  code.instructions.insert(code.instructions.begin() + static_cast<std::ptrdiff_t>(chosen.run), Allocate{fresh});
  return true;
}

struct Change {
  const char* what;
  bool (*apply)(Program&, Random&);
  std::uint64_t seed;
  bool operator()(Program& program) const {
    Random random(seed);
    return apply(program, random);
  }
  std::string text() const { return fmt::format("{} (seed {})", what, seed); }
};

Ledger said_by(const Program& program) { return ledger_of(program, {.steps = kChangedSteps, .abbreviate = false}); }

struct Said {
  Program program;
  Ledger ledger;
};

/// The changed program, if the change is possible, leaves it sound, and changes what is allocated.
std::optional<Said> changed(const Said& before, const Change& change) {
  Said result{before.program, {}};
  if (!change(result.program) || program::fault_of(result.program)) return std::nullopt;
  result.ledger = said_by(result.program);
  if (compare_ledgers(before.ledger, result.ledger).equal) return std::nullopt;
  return result;
}

struct Subject {
  SmallTraining training;
  Said said;
  std::vector<StepResult> usual;
};

struct Outcome {
  std::vector<StepResult> steps;
  LedgerDifference difference;
};

Outcome run(const SmallTraining& training, const Said& said) {
  Meter::instance().reset();
  Meter::instance().record_events(true);
  Outcome outcome;
  training.on_ranks([&](ProcessGroups& groups) {
    training.with_trainer(
        groups,
        [&](Trainer& trainer) {
          for (int step = 1; step <= kChangedSteps; ++step) outcome.steps.push_back(trainer.step(step));
          outcome.difference = compare_ledgers(said.ledger, Meter::instance().take_ledger());
        },
        &said.program);
  });
  Meter::instance().record_events(false);
  return outcome;
}

/// "" if the program allocates what it says and computes what it did before it was changed.
std::string fault_in_run(const Subject& subject, const Said& said) {
  const Outcome outcome = run(subject.training, said);
  if (!outcome.difference.equal) return outcome.difference.first;
  for (std::size_t i = 0; i < outcome.steps.size(); ++i) {
    const StepResult &now = outcome.steps[i], &then = subject.usual[i];
    if (now.loss != then.loss || now.gradient_norm != then.gradient_norm)
      return fmt::format("step {}: loss {} and norm {} became {} and {}", now.step, then.loss, then.gradient_norm,
                         now.loss, now.gradient_norm);
  }
  return "";
}

/// The first of the changes that is at fault by itself; all of them if none is.
std::string culprit(const Subject& subject, const std::vector<Change>& changes) {
  std::vector<std::string> texts;
  for (const Change& change : changes) {
    const std::optional<Said> alone = changed(subject.said, change);
    if (alone && !fault_in_run(subject, *alone).empty()) return change.text();
    texts.push_back(change.text());
  }
  return fmt::format("only together: {}", fmt::join(texts, ", "));
}

Subject subject_of(const std::string& model, const Job& job) {
  Subject subject{SmallTraining(model, job, options_of(kChangedSteps)), {}, {}};
  Program& program = subject.said.program;
  subject.training.on_ranks([&](ProcessGroups& groups) { program = subject.training.program_of(groups); });
  subject.said.ledger = said_by(program);
  subject.usual = run(subject.training, subject.said).steps;
  return subject;
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const std::string model : {"llama", "gpt2"}) {
    for (const std::string precision : {"fp32", "bf16-mixed"}) {
      Job job = small_job("full-shard", 1);
      job.sequence = 8;
      job.micro_batch = 1;
      job.global_batch = 3;
      job.accumulation = 3;
      job.precision = precision_named(precision);
      if (model == "llama") job.checkpointing = FullCheckpointing{};
      all.push_back(subject_of(model, job));
    }
  }
  return all;
}

constexpr std::pair<const char*, bool (*)(Program&, Random&)> kKinds[]{
    {"a free later", free_later},
    {"two allocations swapped", swap_allocations},
    {"a gradient of its own storage", make_fresh},
};

}  // namespace

TEST_CASE("programs changed at random, but soundly, allocate what they say and compute what they did") {
  Meter::instance().install_cpu(Bytes{0});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // matrices this small are not worth a second
  const std::vector<Subject> all = subjects();
  Random random(kSeed);
  std::vector<int> made(std::size(kKinds));
  for (int n = 0; n < kChanges / kChangesPerRun; ++n) {
    const Subject& subject = all[static_cast<std::size_t>(n) % all.size()];
    Said said = subject.said;
    std::vector<Change> changes;
    for (int tries = 0; tries < kMostTries && changes.size() < kChangesPerRun; ++tries) {
      const auto kind = static_cast<std::size_t>(tries) % std::size(kKinds);
      const Change change{kKinds[kind].first, kKinds[kind].second, random()};
      std::optional<Said> next = changed(said, change);
      if (!next) continue;
      said = std::move(*next);
      changes.push_back(change);
      ++made[kind];
    }
    CHECK(changes.size() == kChangesPerRun);
    const std::string fault = fault_in_run(subject, said);
    CHECK_MESSAGE(fault.empty(), fault, "; ", culprit(subject, changes));
  }
  for (const int count : made) CHECK(count >= 20);
  at::set_num_threads(threads);
}

}  // namespace vramfit::testing
