#include "estimator/bound/residuals.h"

#include <doctest/doctest.h>

#include <string>

#include <fmt/format.h>

#include "base/error.h"

namespace vramfit {

namespace {

std::string file_with(const std::string& entry, const std::string& kind = "reserved") {
  return fmt::format(R"({{"about": "a test's", "kind": "{}", "cases": [{}]}})", kind, entry);
}

std::string entry_with(const std::string& key, const std::string& value) {
  std::string text =
      R"({"runtime": "pytorch", "case": "one", "predicted_bytes": 100, "observed_bytes": 101, "source": "a page"})";
  if (key.empty()) return text;
  const std::size_t begin = text.find("\"" + key + "\": ") + key.size() + 4;
  text.replace(begin, text.find_first_of(",}", begin) - begin, value);
  return text;
}

std::string refusal(const std::string& text) {
  try {
    read_residuals(text, ResidualKind::reserved, "cases.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("recorded cases are read, and each kind has some") {
  const std::vector<Residual> read =
      read_residuals(file_with(entry_with("", "")), ResidualKind::reserved, "cases.json");
  REQUIRE(read.size() == 1);
  CHECK(read[0].runtime == Runtime::pytorch);
  CHECK(read[0].predicted == Bytes{100});
  CHECK(read[0].observed == Bytes{101});
  for (const ResidualKind kind : {ResidualKind::reserved, ResidualKind::rehearsed, ResidualKind::outside}) {
    CAPTURE(residual_kind_name(kind));
    CHECK(recorded_residuals(kind).size() >= 9);  // what a confidence of 0.9 takes
  }
}

TEST_CASE("hostile residuals are refused by file and key") {
  CHECK(refusal(file_with(entry_with("runtime", "\"pytorch-fsdp3\""))).find("runtime: is not a runtime") !=
        std::string::npos);
  for (const char* bytes : {"0", "-1", "1099511627777", "9223372036854775808", "1.5", "\"100\"", "null", "1e400"}) {
    CAPTURE(bytes);
    CHECK(refusal(file_with(entry_with("predicted_bytes", bytes))).find("cases.json") != std::string::npos);
    CHECK(refusal(file_with(entry_with("observed_bytes", bytes))).find("cases.json") != std::string::npos);
  }
  CHECK(refusal(file_with(entry_with("observed_bytes", "1615"))).empty());
  CHECK(refusal(file_with(entry_with("observed_bytes", "1616"))).find("is many times predicted_bytes") !=
        std::string::npos);
  CHECK(refusal(file_with(entry_with("case", "\"\""))).find("case: is empty") != std::string::npos);
  CHECK(refusal(file_with(entry_with("source", "\"\""))).find("source: is empty") != std::string::npos);
  CHECK(refusal(file_with(entry_with("", ""), "outside")).find("kind: is not reserved") != std::string::npos);
  CHECK(refusal(file_with(entry_with("", "") + "," + entry_with("", ""))).find("name a case twice") !=
        std::string::npos);
  CHECK(refusal(file_with(R"({"runtime": "pytorch"})")).find("missing") != std::string::npos);
  CHECK(refusal(R"({"kind": "reserved", "cases": [], "more": 1})").find("more") != std::string::npos);
  for (const char* text :
       {"", "[]", "{", "null", R"({"kind": "reserved", "cases": {}})", R"({"kind": "reserved", "cases": [1]})"}) {
    CAPTURE(text);
    CHECK(refusal(text).find("cases.json") != std::string::npos);
  }
}

}  // namespace vramfit
