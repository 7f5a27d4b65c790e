// Logs and memory snapshots, mutated: explained, or refused with one line, and quickly.
#include <doctest/doctest.h>

#include <filesystem>
#include <random>
#include <string>

#include "cli/explain/explanation.h"
#include "cli/files.h"
#include "tests/support/mutate.h"
#include "tests/support/paths.h"
#include "tests/support/refused_or_read.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::Outcome;

void try_one(const testing::TemporaryDirectory& place, const std::string& text, Outcome& outcome) {
  const std::string file = place.write("input", text);
  testing::try_to(
      [&] {
        const Explanation explanation = explain(file);
        CHECK(!explanation_text(explanation, {}).empty());
        CHECK(!explanation_to_json(explanation).empty());
      },
      outcome);
}

/// Flips, removes and repeats bytes: half of what mutate() does looks for colons, which a pickle lacks.
std::string mutate_bytes(std::string text, std::mt19937_64& random) {
  for (std::uint64_t change = 0, count = 1 + random() % 4; change < count && text.size() > 2; ++change) {
    const std::size_t at = 2 + random() % (text.size() - 2);
    const std::size_t length = std::min<std::size_t>(1 + random() % 8, text.size() - at);
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] = "(.]}aesut)\x85\x86\x94hjqrKMJ\x8a\x88N"[random() % 23];
        break;
      case 2:
        text.erase(at, length);
        break;
      default:
        text.insert(at, text.substr(at, length));
    }
  }
  return text;
}

Outcome try_mutations(const std::string& extension, int count) {
  Outcome outcome;
  const testing::TemporaryDirectory place;
  const std::filesystem::path examples = std::filesystem::path(testing::source_dir()) / "tests/cli/explain/examples";
  for (const auto& entry : std::filesystem::directory_iterator(examples)) {
    if (entry.path().extension() != extension) continue;
    const std::string text = read_file(entry.path().string());
    std::mt19937_64 random(text.size());
    for (int i = 0; i < count; ++i) {
      try_one(place, extension == ".log" ? testing::mutate(text, random) : mutate_bytes(text, random), outcome);
    }
  }
  return outcome;
}

}  // namespace

TEST_CASE("a mutated log is explained or refused with one line") { CHECK(try_mutations(".log", 300).accepted > 300); }

TEST_CASE("a mutated snapshot is explained or refused with one line") {
  const Outcome outcome = try_mutations(".pickle", 300);
  // Both must happen often, or the mutations say nothing.
  CHECK(outcome.accepted * 20 > outcome.refused);
  CHECK(outcome.refused * 20 > outcome.accepted);
}

TEST_CASE("what is made to take long or much is refused at once") {
  const testing::TemporaryDirectory place;
  Outcome outcome;
  for (const std::string part : {"(", "]", "}", ")", "N", "]\x94", "\x85", "(]e", "}h", "\x8c\x01x", "(K\x01", "]a"}) {
    std::string text = "\x80\x04]\x94";
    while (text.size() < 4000000) text += part;
    try_one(place, text, outcome);
  }
  for (const std::string part :
       {"Traceback (most recent call last):\n", "  File \"a\", line 1, in b\n", "CUDA out of memory. ",
        "[rank1]: CUDA out of memory.\n", "Process 1 has 1.00 GiB memory in use. ", "\x1b[", "│ a:1 in b │\n"}) {
    std::string text = "CUDA out of memory. Tried to allocate";
    while (text.size() < 4000000) text += part;
    try_one(place, text, outcome);
  }
  CHECK(outcome.refused >= 12);
}

TEST_SUITE("full") {
  TEST_CASE("many mutated logs and snapshots are explained or refused with one line") {
    CHECK(try_mutations(".log", 5000).accepted > 5000);
    CHECK(try_mutations(".pickle", 5000).refused > 1000);
  }
}

}  // namespace vramfit
