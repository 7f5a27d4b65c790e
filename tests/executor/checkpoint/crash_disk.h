// A model of what a disk may hold after the power fails: only what was synchronized is sure, the rest may be there or
// not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/checkpoint/files.h"

namespace vramfit::testing {

/// One call that changed the file system.
struct FileOperation {
  enum class Kind { make_directory, create, write, sync, sync_directory, rename, remove, finished } kind{};
  std::string path, to;   // relative to the directory of the test; `to`: of a rename
  std::string bytes;      // of a write
  std::int64_t step = 0;  // finished: a save of this step has returned
};

/// Real calls below `root`, written down.
class RecordingFiles final : public FileCalls {
 public:
  explicit RecordingFiles(const std::string& root);

  int make_directory(int folder, const std::string& name) override;
  int create(int folder, const std::string& name) override;
  int write(int descriptor, std::span<const char> bytes) override;
  int sync(int descriptor) override;
  int close(int descriptor) override { return calls_->close(descriptor); }
  int sync_directory(int folder) override;
  int rename(int folder, const std::string& from, const std::string& to) override;
  int remove_file(int folder, const std::string& name) override;
  int remove_directory(int folder, const std::string& name) override;

  /// Notes that the save of `step` has returned.
  void finished(std::int64_t step);
  const std::vector<FileOperation>& operations() const { return operations_; }

 private:
  using Kind = FileOperation::Kind;
  void note(Kind kind, const std::string& path, std::string to = "", std::string bytes = "");
  std::string inside(int folder, const std::string& name = "") const;

  std::string root_;
  std::unique_ptr<FileCalls> calls_;
  std::map<int, std::string> opened_;  // as in FileOperation
  std::vector<FileOperation> operations_;
};

/// Path -> bytes of the files that are there.
using DiskContents = std::map<std::string, std::string>;

class CrashDisk {
 public:
  CrashDisk();
  void apply(const FileOperation& operation);
  /// Calls `visit` with what may be there if the power fails now: every combination of changes that are not
  /// synchronized having happened or not, and of such files being empty, half or whole; `most` of them, drawn, when
  /// there are more.
  void after_power_failure(std::size_t most, std::uint64_t seed,
                           const std::function<void(const DiskContents&)>& visit) const;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  struct Change {
    std::string removed, added;  // names; "" for none
    NodePtr node;                // under `added`
  };
  struct Node {
    bool is_directory = false;
    std::map<std::string, NodePtr> entries, sure_entries;
    std::vector<Change> changes;  // since the last synchronization
    std::string bytes, sure_bytes;
  };

  NodePtr make(const std::string& path, bool is_directory);
  NodePtr find(const std::string& path) const;
  void change(const std::string& directory, Change change);
  void collect(const NodePtr& node, const std::string& path, const std::map<const Node*, std::uint64_t>& choices,
               DiskContents& contents) const;

  std::vector<NodePtr> nodes_;  // the first is the root
};

}  // namespace vramfit::testing
