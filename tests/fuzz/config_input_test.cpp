// Configurations of other tools, mutated: read, or refused with one line, and quickly.
#include <doctest/doctest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cli/configs/import.h"
#include "cli/files.h"
#include "cli/format/import_text.h"
#include "tests/support/mutate.h"
#include "tests/support/paths.h"
#include "tests/support/refused_or_read.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::Outcome;

void try_one(const testing::TemporaryDirectory& place, const std::string& name, const std::string& text,
             Outcome& outcome) {
  const std::string file = place.write(name, text);
  CAPTURE(text);
  testing::try_to(
      [&] {
        const ImportedJob job = import_configs({file});
        CHECK(!import_text(job, {}).empty());
        CHECK(!import_to_json(job).empty());
      },
      outcome);
}

Outcome try_mutations(int count) {
  Outcome outcome;
  const testing::TemporaryDirectory place;
  const std::filesystem::path examples = std::filesystem::path(testing::source_dir()) / "tests/cli/configs/examples";
  for (const auto& entry : std::filesystem::directory_iterator(examples)) {
    const std::string text = read_file(entry.path().string());
    std::mt19937_64 random(text.size());
    for (int i = 0; i < count; ++i) {
      try_one(place, entry.path().filename().string(), testing::mutate(text, random), outcome);
    }
  }
  return outcome;
}

}  // namespace

TEST_CASE("a mutated configuration is read or refused with one line") {
  const Outcome outcome = try_mutations(60);
  // Both must happen often, or the mutations say nothing.
  CHECK(outcome.accepted * 20 > outcome.refused);
  CHECK(outcome.refused * 20 > outcome.accepted);
}

TEST_CASE("what is made to take long or to nest deeply is refused at once") {
  const testing::TemporaryDirectory place;
  Outcome outcome;
  const std::size_t size = 200000;
  for (const std::string name : {"a.yaml", "a.json", "a.toml", "a.sh"}) {
    for (const std::string part :
         {"[", "{a: ", "{\"a\":", "- ", "a: &a\n", "? ", "'", "\"", "[a.", "a.", "[[a]]\n", "\\", "|\n ", "!"}) {
      std::string text;
      while (text.size() < size) text += part;
      try_one(place, name, text, outcome);
    }
  }
  CHECK(outcome.accepted == 0);
}

TEST_SUITE("full") {
  TEST_CASE("many mutated configurations are read or refused with one line") {
    CHECK(try_mutations(400).refused > 1000);
  }
}

}  // namespace vramfit
