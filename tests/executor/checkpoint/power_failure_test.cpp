#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/saver.h"
#include "job/fields/job_fields.h"
#include "program/files/checkpoint_steps.h"
#include "tests/executor/checkpoint/crash_disk.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::CrashDisk;
using testing::DiskContents;
using testing::FileOperation;
using testing::RecordingFiles;
using testing::TemporaryDirectory;

/// A rank alone: nothing is exchanged.
struct NoGroups final : ProcessGroups {
  Collectives& world() override { throw std::logic_error("no collectives here"); }
  Collectives& shard() override { return world(); }
  Collectives& replicate() override { return world(); }
  Collectives& reshard() override { return world(); }
  std::vector<std::string> gather_texts(const std::string& /*topic*/, const std::string& text) override {
    return {text};
  }
  std::vector<std::string> share_texts(const std::string& /*topic*/, const std::string& text) override {
    return {text};
  }
  void post(const std::string& /*topic*/, const std::string& /*text*/) override {}
  std::optional<std::string> posted(const std::string& /*topic*/) override { return std::nullopt; }
};

std::string header_of(std::int64_t step) { return "header of step " + std::to_string(step) + "; "; }
std::string data_of(std::int64_t step) { return std::string(300, static_cast<char>('a' + step)); }

/// Three saves into an empty directory, two of which stay.
std::vector<FileOperation> record_saves(const TemporaryDirectory& directory) {
  RecordingFiles files(directory.path().string());
  const std::string saved = (directory.path() / "saved").string();
  remove_leftovers(files, OpenFolder::make(files, saved));
  NoGroups groups;
  Saver saver({.directory = saved, .keep = 1}, files, groups, unresolved_job());
  for (std::int64_t step = 1; step <= 3; ++step) {
    Manifest manifest;
    manifest.step = step;
    saver.save(manifest, [&](Snapshot& snapshot) {
      const auto data = std::make_shared<const std::string>(data_of(step));
      snapshot.header = header_of(step);
      snapshot.data = *data;
      snapshot.keeps_alive = data;
    });
    saver.wait();
    files.finished(step);
  }
  return files.operations();
}

/// The newest step whose checkpoint is sound; nothing when a folder with a committed name is not.
std::optional<std::int64_t> newest_sound(const DiskContents& contents) {
  const TemporaryDirectory directory;
  for (const auto& [path, bytes] : contents) directory.write(path, bytes);
  const std::string saved = (directory.path() / "saved").string();
  std::int64_t newest = 0;
  for (const std::int64_t step : committed_steps(saved)) {
    try {
      const std::string folder = committed_folder(saved, step);
      const Manifest manifest = read_manifest(folder);
      verify_file(folder, manifest, 0);
      const auto file = contents.find("saved/" + folder.substr(saved.size() + 1) + "/" + rank_file(0));
      if (manifest.step != step || file->second != header_of(step) + data_of(step)) return std::nullopt;
    } catch (const DamagedCheckpoint&) {
      return std::nullopt;
    }
    newest = step;
  }
  return newest;
}

struct Outcome {
  int states = 0, wrong = 0;
};

/// The power fails before each operation and after the last one. What was looked at once is remembered: most of what
/// may be left is left at several moments.
Outcome replay(const std::vector<FileOperation>& operations, std::size_t most) {
  Outcome outcome;
  CrashDisk disk;
  std::map<DiskContents, std::optional<std::int64_t>> known;
  std::int64_t committed = 0;
  for (std::size_t i = 0; i <= operations.size(); ++i) {
    disk.after_power_failure(most, i, [&](const DiskContents& contents) {
      auto found = known.find(contents);
      if (found == known.end()) found = known.emplace(contents, newest_sound(contents)).first;
      const std::optional<std::int64_t> newest = found->second;
      ++outcome.states;
      if (!newest || *newest < committed) ++outcome.wrong;
    });
    if (i == operations.size()) break;
    disk.apply(operations[i]);
    if (operations[i].kind == FileOperation::Kind::finished) committed = operations[i].step;
  }
  return outcome;
}

std::vector<FileOperation> without(std::vector<FileOperation> operations, FileOperation::Kind kind,
                                   const std::string& path_part) {
  std::erase_if(operations, [&](const FileOperation& operation) {
    return operation.kind == kind && operation.path.find(path_part) != std::string::npos;
  });
  return operations;
}

TEST_CASE(
    "after a power failure at any moment every committed checkpoint is sound and none that was reported is lost") {
  const TemporaryDirectory directory;
  const std::vector<FileOperation> operations = record_saves(directory);
  CHECK(operations.size() > 40);
  const Outcome outcome = replay(operations, 100);
  CHECK(outcome.states > 200);
  MESSAGE(outcome.states << " states of the disk");
  CHECK(outcome.wrong == 0);
}

TEST_CASE("a save that leaves out any of its synchronizations is caught by the replay") {
  using Kind = FileOperation::Kind;
  const TemporaryDirectory directory;
  const std::vector<FileOperation> operations = record_saves(directory);
  CHECK(replay(without(operations, Kind::sync, rank_file(0)), 50).wrong > 0);
  CHECK(replay(without(operations, Kind::sync, std::string(kManifestFile)), 50).wrong > 0);
  CHECK(replay(without(operations, Kind::sync_directory, ".saving-"), 50).wrong > 0);
  std::vector<FileOperation> no_commit = operations;
  std::erase_if(no_commit, [](const FileOperation& operation) {
    return operation.kind == Kind::sync_directory && operation.path == "saved";
  });
  CHECK(replay(no_commit, 50).wrong > 0);
}

}  // namespace
}  // namespace vramfit
