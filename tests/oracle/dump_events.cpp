// Prints every event of a counted job: dump_events CONFIG.JSON CLUSTER STEPS [FIELD=VALUE ...]
// One JSON array a line: ["mark", "step 1"], ["+", bytes, id, stream, label], ["-", bytes, id, stream], and at the end
// ["managed", bytes], the peak of managed memory.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/oracle/counted_job.h"

namespace {

using vramfit::Event;

void print(const vramfit::Ledger& ledger) {
  int step = -1;
  for (const Event& event : ledger.events) {
    if (event.step != step) {
      step = event.step;
      fmt::print("[\"mark\", \"{}\"]\n", step == 0 ? "load" : fmt::format("step {}", step));
    }
    if (event.bytes == 0) continue;  // no block
    const int stream = static_cast<int>(event.stream);
    if (event.bytes > 0) {
      const nlohmann::json label = ledger.labels[static_cast<std::size_t>(event.label)];
      fmt::print("[\"+\", {}, {}, {}, {}]\n", event.bytes, event.id, stream, label.dump());
    } else {
      fmt::print("[\"-\", {}, {}, {}]\n", -event.bytes, event.id, stream);
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const vramfit::testing::CountedJob counted = vramfit::testing::count_from_arguments(argc, argv);
  print(counted.ledger);
  fmt::print("[\"managed\", {}]\n", counted.managed.n);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
