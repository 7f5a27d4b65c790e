// Trees that are read from YAML, TOML, JSON and command lines, and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/configs/syntax/json.h"
#include "cli/configs/syntax/shell_words.h"
#include "cli/configs/syntax/toml.h"
#include "cli/configs/syntax/yaml.h"

namespace vramfit {
namespace {

using Kind = ConfigNode::Kind;

std::string message_of(ConfigNode (*read)(std::string_view, const std::string&), const std::string& text) {
  try {
    (void)read(text, "f");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("plain scalars of YAML are what PyYAML 6.0 makes of them") {
  struct Row {
    std::string text;
    Kind kind;
    double value = 0;
  };
  const std::vector<Row> rows{
      {"1e-4", Kind::text},
      {"1.0e-4", Kind::real, 1e-4},
      {"1.0e4", Kind::text},
      {"1.0e+4", Kind::real, 1e4},
      {"1.", Kind::real, 1},
      {".5", Kind::real, 0.5},
      {"-.5", Kind::text},
      {"+1.5", Kind::real, 1.5},
      {"1_000", Kind::integer, 1000},
      {"0x1F", Kind::integer, 31},
      {"0b101", Kind::integer, 5},
      {"017", Kind::integer, 15},
      {"08", Kind::text},
      {"0o17", Kind::text},
      {"190:20:30", Kind::integer, 685230},
      {"1:60", Kind::text},
      {"-17", Kind::integer, -17},
      {"+3", Kind::integer, 3},
      {"00", Kind::integer, 0},
      {"~", Kind::null},
      {"null", Kind::null},
      {"nUll", Kind::text},
      {"yes", Kind::boolean, 1},
      {"YES", Kind::boolean, 1},
      {"yEs", Kind::text},
      {"no", Kind::boolean, 0},
      {"Off", Kind::boolean, 0},
      {"TRUE", Kind::boolean, 1},
      {"y", Kind::text},
      {"1.5e", Kind::text},
      {"1.e+3", Kind::real, 1000},
      {"12e03", Kind::text},
      {"1_0.5", Kind::real, 10.5},
      {"0x", Kind::text},
      {"1.2.3", Kind::text},
      {"2001-12-14", Kind::text},
      {"", Kind::null},
      {".INF", Kind::real, INFINITY},
      {"-.inf", Kind::real, -INFINITY},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const ConfigNode node = plain_yaml_scalar(row.text, 1);
    CHECK(node.kind == row.kind);
    if (row.kind == Kind::boolean) CHECK(node.boolean == (row.value == 1));
    if (row.kind == Kind::integer || row.kind == Kind::real) CHECK(node.real == row.value);
  }
  CHECK(std::isnan(plain_yaml_scalar(".nan", 1).real));
}

TEST_CASE("values of YAML have the line of their key, and quotes make text of anything") {
  const ConfigNode root = read_yaml("a: 1\nb:\n  c: 'no'\n  d: [x, 2]\n", "f");
  CHECK(find_path(root, "b.c")->kind == Kind::text);
  CHECK(find_path(root, "b.c")->line == 3);
  CHECK(find_path(root, "b.d")->items[1].integer == 2);
  CHECK(find_path(root, "b")->line == 2);
  CHECK(find_path(root, "b.e") == nullptr);
}

TEST_CASE("anchors and merge keys are resolved, and the last of repeated keys counts") {
  const ConfigNode root = read_yaml("base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3\nagain: *b\nk: 1\nk: 2\n", "f");
  CHECK(find_path(root, "more.x")->integer == 1);
  CHECK(find_path(root, "more.y")->integer == 3);
  CHECK(find_path(root, "again.y")->integer == 2);
  CHECK(find_path(root, "k")->integer == 2);
  CHECK(root.keys.size() == 4);
}

TEST_CASE("YAML beyond the limits or outside plain data is refused with its line") {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    laughs += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  }
  CHECK(message_of(read_yaml, laughs).find("more than 20000 values") != std::string::npos);
  CHECK(message_of(read_yaml, "a: 1\nb: " + std::string(40, '[') + std::string(40, ']')) ==
        "f:2: nested deeper than 32 levels");
  CHECK(message_of(read_yaml, "a: !!python/object:os.system {}\n").find("f:1: tag") == 0);
  CHECK(message_of(read_yaml, "a: *nothing\n").find("has no anchor before it") != std::string::npos);
  CHECK(message_of(read_yaml, "a: &a [*a]\n").find("has no anchor before it") != std::string::npos);
  CHECK(message_of(read_yaml, "a: 1\n---\nb: 2\n").find("second document") != std::string::npos);
  CHECK(message_of(read_yaml, "a: 1\n\tb: 2\n").find("not valid YAML") != std::string::npos);
  CHECK(message_of(read_yaml, "? [a]\n: 1\n") == "f:1: a key is a list or a map");
  CHECK(message_of(read_yaml, "a: " + std::string(kMostConfigBytes, 'x')).find("bytes are more") != std::string::npos);
}

TEST_CASE("TOML has lines too, and deep tables are refused") {
  const ConfigNode root = read_toml("[training]\nseq_len = 8192  # tokens\nfast = true\n[a.b]\nc = [1, 2.5]\n", "f");
  CHECK(find_path(root, "training.seq_len")->integer == 8192);
  CHECK(find_path(root, "training.seq_len")->line == 2);
  CHECK(find_path(root, "training.fast")->boolean);
  CHECK(find_path(root, "a.b.c")->items[1].real == 2.5);
  CHECK(message_of(read_toml, "a = 1\nb = \n").find("f:2: not valid TOML") == 0);
  std::string deep = "a";
  for (int i = 0; i < 100; ++i) deep += ".a";
  CHECK(message_of(read_toml, "[" + deep + "]") == "f:1: more than 64 dots in a line");
  CHECK(message_of(read_toml, "a = " + std::string(5000, '[') + std::string(5000, ']')).find("f:1: ") == 0);
  CHECK(message_of(read_toml, std::string(4000, '[')).find("f: not valid TOML") == 0);
  CHECK(message_of(read_toml, "a = 1\na = 2\n").find("f:2: not valid TOML") == 0);
}

TEST_CASE("JSON has the line of each key, whatever the texts hold") {
  const ConfigNode root =
      read_json("{\n \"a\": \"x,\\\"\\n{\",\n \"b\": {\"c\": [1, -2.5e3,\n  null]},\n \"d\": true}", "f");
  CHECK(find_path(root, "a")->line == 2);
  CHECK(find_path(root, "b.c")->line == 3);
  CHECK(find_path(root, "b.c")->items[1].text == "-2.5e3");
  CHECK(find_path(root, "b.c")->items[2].line == 4);
  CHECK(find_path(root, "d")->line == 5);
  CHECK(message_of(read_json, "{\"a\": 1,}").find("not valid JSON") != std::string::npos);
}

TEST_CASE("a script's commands are split as a shell does, as far as it says what is meant") {
  const auto commands = shell_commands(
      "#!/bin/bash\nexport A=1\naccelerate launch \\\n  --x 'a b' \\\n  --y=\"$Z\" train.py # end\n", "f");
  REQUIRE(commands.size() == 2);
  const auto& words = commands[1];
  REQUIRE(words.size() == 6);
  CHECK(words[3].text == "a b");
  CHECK(words[3].line == 4);
  CHECK(words[4].text == "--y=$Z");
  CHECK(!words[4].is_plain);
  CHECK(words[5].text == "train.py");
  CHECK_THROWS_WITH_AS(shell_commands("a 'b\n", "f"), "f:1: a quote is not closed", InputError);
}

}  // namespace
}  // namespace vramfit
