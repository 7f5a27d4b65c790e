#include "base/pickle/pickle_reader.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/pickle/pickle_writer.h"

namespace vramfit {
namespace {

using namespace std::string_literals;

PickleDocument read(const std::string& body, const PickleLimits& limits = {}) { return {body, "x.pickle", limits}; }

/// What is said of a document of protocol 4 with this body.
std::string refusal(const std::string& body, const PickleLimits& limits = {}) {
  try {
    read("\x80\x04"s + body, limits);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& text, std::string_view words) { return text.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("what Python pickles of plain values is read, in protocols 2 to 5") {
  // pickle.dumps({"a": [1, -2, 300, 70000, 2**40, 0.5, True, None], "b": ("a", (), {})}, protocol)
  const std::vector<std::string> documents{
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01G?"
      "\xe0\x00\x00\x00\x00\x00\x00\x88NeX\x01\x00\x00\x00"
      "bq\x03h\x01)}q\x04\x87q\x05u."s,
      "\x80\x04\x95:\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
      "a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01G?"
      "\xe0\x00\x00\x00\x00\x00\x00\x88Ne\x8c\x01"
      "b\x94h\x01)}\x94\x87\x94u."s};
  for (std::string text : documents) {
    for (const char protocol : {text[1], text[1] == '\x04' ? '\x05' : '\x03'}) {
      text[1] = protocol;
      const PickleDocument document = read(text);
      const PickleItem root = document.root();
      REQUIRE(root.kind() == PickleKind::dict);
      REQUIRE(root.size() == 2);
      CHECK(root.key(0).text() == "a");
      const PickleItem list = root.mapped(0);
      REQUIRE(list.size() == 8);
      for (const auto& [at, value] : {std::pair{0, 1L}, {1, -2L}, {2, 300L}, {3, 70000L}, {4, 1L << 40}}) {
        CHECK(list.item(static_cast<std::size_t>(at)).integer() == value);
      }
      CHECK(list.item(5).real() == 0.5);
      CHECK(list.item(6).kind() == PickleKind::boolean);
      CHECK(list.item(7).kind() == PickleKind::none);
      const PickleItem tuple = root.mapped(1);
      REQUIRE(tuple.kind() == PickleKind::tuple);
      REQUIRE(tuple.size() == 3);
      CHECK(tuple.item(0).id() == root.key(0).id());  // the same text, referred to
      CHECK(tuple.item(1).size() == 0);
      CHECK(tuple.item(2).kind() == PickleKind::dict);
    }
  }
}

TEST_CASE("what our own writer writes is read back") {
  std::ostringstream out;
  PickleWriter writer(out);
  writer.begin_dict().member("name", "x").member("bytes", std::int64_t{1} << 45).key("list").begin_list();
  for (int i = 0; i < 3000; ++i) writer.integer(i);
  writer.end_list().key("pair").pair(-1, 7).end_dict().stop();
  const PickleDocument document = read(out.str());
  CHECK(document.root().mapped(1).integer() == std::int64_t{1} << 45);
  REQUIRE(document.root().mapped(2).size() == 3000);
  CHECK(document.root().mapped(2).item(2999).integer() == 2999);
  CHECK(document.root().mapped(3).item(0).integer() == -1);
}

TEST_CASE("what would make an object or call a function is refused by name") {
  CHECK(says(refusal("cos\nsystem\n."), "opcode GLOBAL (os.system): only plain values are read"));
  CHECK(says(refusal("\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."), "opcode STACK_GLOBAL (os.system)"));
  CHECK(says(refusal("]]R."), "byte 4: opcode REDUCE"));
  CHECK(says(refusal("}}b."), "opcode BUILD"));
  CHECK(says(refusal("(ios\nsystem\n."), "opcode INST"));
  CHECK(says(refusal("]]\x81."), "opcode NEWOBJ"));
  CHECK(says(refusal("Pid\n."), "opcode PERSID"));
  CHECK(says(refusal("C\x01x."), "opcode SHORT_BINBYTES"));
  CHECK(says(refusal("\xff."), "0xff is no opcode"));
}

TEST_CASE("documents that are no pickle of Python's are refused with the byte") {
  CHECK(says(refusal(""), "the file ends here"));
  CHECK(says(refusal("]]."), "STOP without exactly one value"));
  CHECK(says(refusal("(]."), "STOP without exactly one value"));
  CHECK(says(refusal("e."), "nothing was marked"));
  CHECK(says(refusal("a."), "too few values on the stack"));
  CHECK(says(refusal("K\x01K\x02"
                     "a."),
             "items for a list, found an integer"));
  CHECK(says(refusal("}(K\x01u."), "a key without a value"));
  CHECK(says(refusal("(K\x01K\x02u."), "no container below the items"));
  CHECK(says(refusal("h\x05."), "memo 5 was never set"));
  CHECK(says(refusal("]r\xff\xff\xff\x7f."), "memo 2147483647; expected at most 0"));
  CHECK(says(refusal("X\xff\xff\xff\xff"
                     "a."),
             "a text of 4294967295 bytes, and the file ends"));
  CHECK(says(refusal("\x8a\x0a..........."), "an integer of 10 bytes"));
  CHECK(says(refusal("\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\x01."s), "an integer of more than 64 bits"));
  CHECK_THROWS_WITH_AS(read("{}"), "x.pickle: byte 0: expected a pickle of protocol 2 or newer", InputError);
  CHECK_THROWS_WITH_AS(read("\x80\x01N."), "x.pickle: byte 0: protocol 1; expected 2 to 5", InputError);
}

TEST_CASE("size and depth are bounded, and circles are only values that refer to each other") {
  CHECK(says(refusal(std::string(101, '(')), "more than 100 containers deep"));
  CHECK(says(refusal(std::string(200, ']'), {.values = 100}), "more than 100 values"));
  std::string references = "]\x94(";
  for (int i = 0; i < 200; ++i) references += "h\x00"s;
  CHECK(says(refusal(references + "e.", {.references = 100}), "more than 100 items"));
  const PickleDocument circle = read(
      "\x80\x04]\x94h\x00"
      "a."s);
  CHECK(circle.root().item(0).id() == circle.root().id());
}

}  // namespace vramfit
