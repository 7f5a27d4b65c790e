#include "cli/explain/snapshot.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/pickle/pickle_writer.h"
#include "cli/explain/explanation.h"
#include "cli/explain/snapshot_facts.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

std::string example(const std::string& name) {
  return (std::filesystem::path(testing::source_dir()) / "tests/cli/explain/examples" / name).string();
}

using Write = std::function<void(PickleWriter&)>;

void frames(PickleWriter& out, const std::string& file, const std::string& function) {
  out.key("frames").begin_list().begin_dict();
  out.member("filename", file).member("name", function).member("line", 7).end_dict().end_list();
}

void block(PickleWriter& out, std::int64_t address, std::int64_t size, std::int64_t requested, const char* state) {
  out.begin_dict().member("address", address).member("size", size).member("requested_size", requested);
  out.member("state", state);
  frames(out, "train.py", "main");
  out.end_dict();
}

void event(PickleWriter& out, const char* action, std::int64_t address, std::int64_t size) {
  out.begin_dict().member("action", action).member("size", size);
  out.member(std::string(action) == "oom" ? "device_free" : "addr", address);
  frames(out, "train.py", action);
  out.end_dict();
}

/// A snapshot with one segment of 1000 bytes on GPU 0 whose blocks and events `blocks` and `events` write.
std::string snapshot_text(const Write& blocks, const Write& events) {
  std::ostringstream stream;
  PickleWriter out(stream);
  out.begin_dict().key("segments").begin_list();
  out.begin_dict().member("device", 0).member("address", 4096).member("total_size", 1000).key("blocks").begin_list();
  blocks(out);
  out.end_list().end_dict().end_list();
  out.key("device_traces").begin_list().begin_list();
  events(out);
  out.end_list().end_list();
  out.key("allocator_settings").begin_dict().member("expandable_segments", false).end_dict();
  out.end_dict().stop();
  return stream.str();
}

SnapshotFacts facts(const std::string& text) {
  const testing::TemporaryDirectory place;
  const Snapshot snapshot = read_snapshot(place.write("x.pickle", text));
  REQUIRE(snapshot.devices.size() == 1);
  return facts_of(snapshot, snapshot.devices.front());
}

std::string refusal(const std::string& text) {
  const testing::TemporaryDirectory place;
  try {
    read_snapshot(place.write("x.pickle", text));
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("blocks of a segment are told apart by their state") {
  const SnapshotFacts found = facts(snapshot_text(
      [](PickleWriter& out) {
        block(out, 4096, 512, 500, "active_allocated");
        block(out, 4608, 300, 0, "inactive");
        block(out, 4908, 100, 90, "active_awaiting_free");
        block(out, 5008, 88, 0, "inactive");
      },
      [](PickleWriter&) {}));
  CHECK(found.reserved == Bytes{1000});
  CHECK(found.allocated == Bytes{512});
  CHECK(found.held.bytes == Bytes{500});
  CHECK(found.awaiting_free == Bytes{100});
  CHECK(found.unallocated == Bytes{388});
  CHECK(found.stuck == Bytes{388});
  CHECK(found.largest_free == Bytes{300});
  CHECK_FALSE(found.peak.has_value());
}

TEST_CASE("the peak counts what lived before the recording and what was freed in it") {
  const SnapshotFacts found = facts(snapshot_text(
      [](PickleWriter& out) {
        block(out, 4096, 512, 500, "active_allocated");  // from before
        block(out, 4608, 300, 290, "active_allocated");  // of the last event but one
      },
      [](PickleWriter& out) {
        event(out, "segment_alloc", 90000, 64);
        event(out, "alloc", 90000, 60);
        event(out, "free_requested", 80000, 1000);  // from before, gone now
        event(out, "free_completed", 80000, 1000);
        event(out, "free_requested", 90000, 60);
        event(out, "segment_free", 90000, 64);
        event(out, "alloc", 4608, 290);
        event(out, "oom", 3, 9000);
      }));
  REQUIRE(found.peak.has_value());
  CHECK(found.peak->held.bytes == Bytes{1560});  // 500 + 1000 + 60
  CHECK(found.peak->event == 2);
  CHECK(found.peak->reserved == Bytes{1064});
  CHECK(found.unmatched == 0);
  REQUIRE(found.oom.has_value());
  CHECK(found.oom->asked == Bytes{9000});
  CHECK(found.oom->free == Bytes{3});
  REQUIRE(found.peak->held.lines.size() == 3);  // that of 1000 has no line: it was allocated before
  CHECK(found.peak->held.lines[0].why_unknown == "before the recording");
  CHECK(found.peak->held.lines[1].place->function == "main");
  CHECK(found.peak->held.lines[2].place->function == "alloc");
}

TEST_CASE("a recording that ended before the snapshot is noticed") {
  const SnapshotFacts found = facts(snapshot_text([](PickleWriter& out) { block(out, 4096, 1000, 0, "inactive"); },
                                                  [](PickleWriter& out) {
                                                    event(out, "alloc", 4096, 10);
                                                    event(out, "alloc", 4096, 20);
                                                  }));
  CHECK(found.unmatched == 2);
}

TEST_CASE("snapshots of real PyTorch are read, of 2.11 and of 2.15 with expandable segments") {
  const Explanation steps = explain(example("steps.pickle"));
  REQUIRE(steps.is_snapshot());
  CHECK(steps.facts().unmatched == 0);
  CHECK(steps.advice.empty());
  CHECK_FALSE(steps.facts().oom.has_value());
  for (const char* const name : {"oom.pickle", "expandable.pickle"}) {
    const Explanation oom = explain(example(name));
    CHECK(oom.use.asked == kGiB);
    CHECK(oom.facts().held.lines.front().bytes == 23 * kGiB);
    CHECK(oom.facts().held.lines.front().blocks == 23);
    CHECK(place_text(*oom.site.own) == "/data/train.py:25 in <listcomp>");
    CHECK(oom.use.expandable == (std::string(name) == "expandable.pickle"));
    CHECK_FALSE(oom.advice.empty());
  }
}

TEST_CASE("what a snapshot lacks is named with its place") {
  const auto says = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  const Write nothing = [](PickleWriter&) {};
  CHECK(says(refusal("\x80\x04]."), "x.pickle: is a list; expected a memory snapshot"));
  CHECK(says(refusal("\x80\x04}."), "has no segments"));
  CHECK(says(refusal(snapshot_text([](PickleWriter& out) { out.begin_dict().member("size", 1).end_dict(); }, nothing)),
             "segments[0].blocks[0]: has no state"));
  CHECK(says(refusal(snapshot_text([](PickleWriter& out) { block(out, 1, -5, 0, "inactive"); }, nothing)),
             "segments[0].blocks[0]: size is -5"));
  CHECK(says(refusal(snapshot_text(nothing, [](PickleWriter& out) { out.integer(1); })),
             "device_traces[0][0]: is no dict"));
  CHECK(says(refusal(snapshot_text(nothing, [](PickleWriter& out) { event(out, "alloc", 1, std::int64_t{1} << 60); })),
             "device_traces[0][0]: size is 1152921504606846976"));
  CHECK(says(refusal("\x80\x04"
                     "cos\nsystem\n."),
             "GLOBAL (os.system)"));
}

TEST_CASE("references to the same values can't make a small file take long") {
  const auto name = [](const std::string& text) {
    return "\x8c" + std::string(1, static_cast<char>(text.size())) + text;
  };
  const auto references = [](char memo) {
    std::string text = "](";
    for (int i = 0; i < 60000; ++i) text += std::string("h") + memo;
    return text + "e";
  };
  // A block, a list of 60,000 times that block, a segment with this list, and 60,000 times that segment.
  const std::string block = "}" + name("size") + "K\x01s" + name("state") + name("inactive") + "s\x94";
  const std::string segment = "}" + name("total_size") + "K\x01s" + name("blocks") + "h\x01s\x94";
  const std::string text = "\x80\x04}" + name("a") + block + "s" + name("b") + references('\0') + "\x94s" + name("c") +
                           segment + "s" + name("segments") + references('\x02') + "s.";
  CHECK(refusal(text).find("refers to the same values too often") != std::string::npos);
}

TEST_CASE("a zip file is said to be one") {
  const testing::TemporaryDirectory place;
  CHECK_THROWS_AS(is_pickle(place.write("x.pt", "PK\x03\x04")), InputError);
  CHECK_FALSE(is_pickle(place.write("x.log", "[rank0]: ...")));
}

}  // namespace vramfit
