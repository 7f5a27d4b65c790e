// Reads jobs from standard input, one a line (tests/support/job_line.h), and prints the hash of each job's ledger:
// "HASH EVENTS", or "refused: WHY". Besides what any such line has: micro_batches=all (none of them left out as alike).
#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/numbers/mix_bits.h"
#include "program/make_program.h"
#include "program/readers/check.h"
#include "program/readers/count.h"
#include "program/readers/peaks.h"
#include "tests/support/job_line.h"
#include "tests/support/summed_peaks.h"

namespace vramfit {
namespace {

/// FNV-1a: any change of any byte changes it, which is all that is asked of it.
class Hash {
 public:
  void add(std::string_view text) { state_ = fnv1a("\xff", fnv1a(text, state_)); }  // "ab", "c" is not "a", "bc"
  void add(std::int64_t number) { add(fmt::to_string(number)); }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = fnv1a("");
};

std::uint64_t hash_of(const Ledger& ledger) {
  Hash hash;
  for (const Event& event : ledger.events) {
    hash.add(ledger.labels[static_cast<std::size_t>(event.label)]);
    hash.add(event.bytes);
    hash.add(event.id);
    hash.add(category_name(event.category));
    hash.add(phase_name(event.phase));
    hash.add(event.step);
    hash.add(static_cast<std::int64_t>(event.stream));
  }
  return hash.value();
}

constexpr Bytes kGranule{512};

std::string answer(const std::string& line) {
  testing::JobLine read = testing::parse_job_line(line);
  const bool abbreviates = std::erase(read.settings, std::pair<std::string, std::string>("micro_batches", "all")) == 0;
  const testing::ResolvedJob drawn = testing::resolved(read);
  const Device& device = drawn.cluster.card.device;
  const Ledger ledger =
      count(drawn.graph, drawn.job, device, {}, {.run = {.clip = drawn.clip}, .abbreviate = abbreviates});
  const program::Program program = program::make_program(
      {.graph = drawn.graph, .job = drawn.job, .device = device, .coords = {}, .run = {.clip = drawn.clip}});
  if (const auto fault = program::fault_of(program)) return "unsound: " + *fault;
  const std::string difference =
      testing::difference_of(folded_peaks(program, kGranule), testing::summed_peaks(ledger, kGranule));
  if (!difference.empty()) return "folded peaks differ: " + difference;
  return fmt::format("{:016x} {}", hash_of(ledger), ledger.events.size());
}

}  // namespace
}  // namespace vramfit

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      fmt::print("{}\n", vramfit::answer(line));
    } catch (const std::exception& error) {
      fmt::print("refused: {}\n", error.what());
    }
  }
}
