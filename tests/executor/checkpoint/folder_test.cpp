#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/manifest.h"
#include "job/fields/job_fields.h"
#include "program/files/checkpoint_steps.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

/// A directory of checkpoints of one rank each, beside one that is none of its business.
class Place {
 public:
  Place() : saved(OpenFolder::make(*files, (directory.path() / "saved").string())) {
    fs::create_directory(directory.path() / "outside");
  }

  void save(std::int64_t step) {
    const OpenFolder aside = saved.make_entry(*files, aside_name(step));
    OutputFile file(*files, aside, rank_file(0));
    file.append(std::string_view("shard"));
    file.finish();
    Manifest manifest;
    manifest.step = step;
    manifest.files = {{file.bytes(), file.checksum()}};
    commit(*files, saved, step, manifest_to_json(manifest, unresolved_job()));
  }

  void keep_newest(std::int64_t keep, std::int64_t step) { remove_older(*files, saved, step, keep); }
  bool has(const std::string& path) const { return fs::exists(fs::symlink_status(directory.path() / path)); }
  std::string text(const std::string& path) const {
    std::ifstream file(directory.path() / path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void link(const std::string& target, const std::string& name) const {
    fs::create_symlink(directory.path() / target, directory.path() / name);
  }

  TemporaryDirectory directory;
  std::unique_ptr<FileCalls> files = real_file_calls();
  OpenFolder saved;
};

TEST_CASE("a checkpoint that was moved away is not emptied through the link in its place") {
  Place place;
  for (const std::int64_t step : {8, 16, 24}) place.save(step);
  fs::rename(place.directory.path() / "saved/step-00000008", place.directory.path() / "outside/step-8");
  place.link("outside/step-8", "saved/step-00000008");
  place.keep_newest(1, 24);
  CHECK(place.text("outside/step-8/" + rank_file(0)) == "shard");
  CHECK(place.has("outside/step-8/manifest.json"));
  CHECK(committed_steps(place.saved.path()) == std::vector<std::int64_t>{8, 24});  // the link can still be resumed from
}

TEST_CASE("links planted in the place of leftovers are refused, and what they lead to stays") {
  for (const char* name : {"saved/.saving-step-00000008", "saved/.removing-step-00000008"}) {
    CAPTURE(name);
    Place place;
    place.directory.write("outside/" + rank_file(0), "precious");
    place.link("outside", name);
    CHECK_THROWS_WITH_AS(remove_leftovers(*place.files, place.saved), doctest::Contains(name), FaultError);
    const auto saves_and_removes = [&] {
      place.save(8);
      place.save(16);
      place.keep_newest(1, 16);
    };
    CHECK_THROWS_AS(saves_and_removes(), FaultError);
    CHECK(place.text("outside/" + rank_file(0)) == "precious");
    CHECK(place.has(name));
  }
}

TEST_CASE("an entry that is named much like a leftover is not touched") {
  Place place;
  place.directory.write("outside/precious", "precious");
  place.link("outside", "saved/.removing-x");
  place.directory.write("saved/.saving-step-8/" + rank_file(0), "another program's");
  remove_leftovers(*place.files, place.saved);
  CHECK(place.has("saved/.removing-x"));
  CHECK(place.text("outside/precious") == "precious");
  CHECK(place.text("saved/.saving-step-8/" + rank_file(0)) == "another program's");
}

TEST_CASE("what interrupted saves and removals left is removed") {
  Place place;
  for (const std::string folder : {"saved/.saving-step-00000008/", "saved/.removing-step-00000009/"}) {
    place.directory.write(folder + rank_file(0), "half");
    place.directory.write(folder + rank_file(123456), "half");
    place.directory.write(folder + std::string(kManifestFile), "half");
  }
  remove_leftovers(*place.files, place.saved);
  CHECK(place.saved.names().empty());
}

TEST_CASE("no file is written through a link or another name of it") {
  Place place;
  const std::string victim = place.directory.write("outside/precious", "precious");
  const OpenFolder aside = place.saved.make_entry(*place.files, aside_name(8));
  const fs::path file = fs::path(aside.path()) / rank_file(0);
  SUBCASE("symbolic") { fs::create_symlink(victim, file); }
  SUBCASE("hard") { fs::create_hard_link(victim, file); }
  CHECK_THROWS_AS(place.save(8), FaultError);
  CHECK(place.text("outside/precious") == "precious");
}

TEST_CASE("files that the manifest does not name outlive the removal of their checkpoint") {
  Place place;
  place.save(8);
  place.save(16);
  place.directory.write("saved/step-00000008/notes.txt", "lr was too high");
  place.directory.write("saved/step-00000008/" + rank_file(1), "of another run");
  place.keep_newest(1, 16);
  CHECK_FALSE(place.has("saved/step-00000008"));
  CHECK(place.text("saved/kept-step-00000008/notes.txt") == "lr was too high");
  CHECK(place.text("saved/kept-step-00000008/" + rank_file(1)) == "of another run");
  CHECK_FALSE(place.has("saved/kept-step-00000008/" + rank_file(0)));
  CHECK(committed_steps(place.saved.path()) == std::vector<std::int64_t>{16});
}

TEST_CASE("an old checkpoint without a readable manifest is renamed and not removed") {
  Place place;
  place.save(8);
  place.save(16);
  place.directory.write("saved/step-00000008/" + std::string(kManifestFile), "{}");
  place.keep_newest(1, 16);
  CHECK(place.text("saved/damaged-step-00000008/" + rank_file(0)) == "shard");
}

}  // namespace
}  // namespace vramfit
