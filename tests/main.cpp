// The entry of every test binary: doctest's, except that a filter which selects nothing fails.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/support/paths.h"
#include "tests/support/why_skipped.h"

namespace vramfit::testing {

std::string source_dir() { return VRAMFIT_SOURCE_DIR; }
std::string bin_dir() { return VRAMFIT_BIN_DIR; }
[[gnu::weak]] std::string why_skipped() { return {}; }

}  // namespace vramfit::testing

namespace {

unsigned cases_selected = 0;  // doctest makes its listeners itself, so the count has to live outside of them

struct CountSelected : doctest::IReporter {
  explicit CountSelected(const doctest::ContextOptions& /*options*/) {}
  void test_run_end(const doctest::TestRunStats& stats) override { cases_selected = stats.numTestCasesPassingFilters; }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

}  // namespace

REGISTER_LISTENER("count-selected", 1, CountSelected);

int main(int argc, char** argv) {
  if (const std::string why = vramfit::testing::why_skipped(); !why.empty()) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
    constexpr int kSkipped = 77;
    return kSkipped;
  }
  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (context.shouldExit()) return failed;
  if (cases_selected == 0) {
    std::fprintf(stderr, "no test case matches the filters\n");
    return 1;
  }
  return failed;
}
