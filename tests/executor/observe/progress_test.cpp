#include "executor/observe/progress.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "job/run/run_flags.h"

namespace vramfit {

namespace {

StepReport report_at(std::int64_t step) {
  StepReport report;
  report.result.step = step;
  report.result.loss = 2.34567;
  report.result.seconds = 2;
  report.result.tokens = 24690;
  report.tokens_per_second = 12345;
  report.mfu = 0.4123;
  report.allocated = 3 * kGiB;
  report.reserved = 4 * kGiB;
  return report;
}

ProgressTerminal wide(int columns, bool color = false) { return {.own = true, .color = color, .columns = columns}; }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a wide terminal shows everything that a step is known by") {
  CHECK(bar_text(report_at(50), 100, 3723, wide(160)) ==
        "step 50/100  [###############...............]  loss 2.3457  12345 tokens/s  MFU 41.2 %  allocated 3.00 GiB  "
        "reserved 4.00 GiB  retries 0  ETA 1:02:03");
}

TEST_CASE("a bar is never wider than its terminal, and what matters most stays") {
  for (int columns = 20; columns <= 200; ++columns) {
    CAPTURE(columns);
    const std::string text = bar_text(report_at(50), 100, 65, wide(columns));
    CHECK(static_cast<int>(text.size()) < columns);
    CHECK(has(text, "step 50/100"));
    CHECK(has(text, "loss") == (columns >= 25));
  }
  StepReport many = report_at(999'999'999);
  CHECK(bar_text(many, 1'000'000'000, 65, wide(20)).size() == 19);
}

TEST_CASE("a retry of the allocator outlives the memory figures when room is short") {
  StepReport report = report_at(5);
  report.retries = 3;
  const std::string text = bar_text(report, 10, 65, wide(60));
  CHECK(has(text, "retries 3"));
  CHECK_FALSE(has(text, "reserved"));
}

TEST_CASE("an unknown MFU is a dash") {
  StepReport report = report_at(5);
  report.mfu.reset();
  CHECK(has(bar_text(report, 10, 65, wide(160)), "MFU -"));
}

TEST_CASE("phantom GPUs show no loss, no speed and no time to go") {
  StepReport report = report_at(2);
  report.phantom = true;
  report.tokens_per_second.reset();
  report.mfu.reset();
  const std::string text = bar_text(report, 3, -1, wide(200)), line = line_text(report, 3);
  for (const char* word : {"loss", "tokens/s", "MFU", "ETA"}) {
    CHECK_FALSE(has(text, word));
    CHECK_FALSE(has(line, word));
  }
  CHECK(has(text, "allocated 3.00 GiB"));
}

TEST_CASE("colour is only used where it is wanted") {
  CHECK_FALSE(has(bar_text(report_at(5), 10, 65, wide(160)), "\x1b"));
  CHECK(has(bar_text(report_at(5), 10, 65, wide(160, true)), "\x1b[32m"));
}

TEST_CASE("widths that are no widths are passed over") {
  CHECK(columns_from("120") == 120);
  for (const char* text : {"", "0", "-5", "19", "1001", "99999999999999999999", "80x", "0x50", " 80", "1e2", "%n%n"}) {
    CAPTURE(text);
    CHECK(columns_from(text) == 0);
  }
}

TEST_CASE("a style that nobody knows gets a suggestion") {
  CHECK(progress_style("bar") == ProgressStyle::bar);
  CHECK_THROWS_WITH_AS(progress_style("line"), doctest::Contains("did you mean \"lines\"?"), InputError);
}

}  // namespace vramfit
