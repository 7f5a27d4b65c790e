#include "tests/executor/checkpoint/crash_disk.h"

#include <filesystem>
#include <random>
#include <stdexcept>

namespace vramfit::testing {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }
std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

}  // namespace

RecordingFiles::RecordingFiles(const std::string& root)
    : root_(fs::canonical(root).string()), calls_(real_file_calls()) {}

std::string RecordingFiles::inside(int folder, const std::string& name) const {
  const fs::path open = fs::read_symlink("/proc/self/fd/" + std::to_string(folder)).lexically_relative(root_);
  return (open == "." ? fs::path(name) : name.empty() ? open : open / name).string();
}

void RecordingFiles::note(Kind kind, const std::string& path, std::string to, std::string bytes) {
  operations_.push_back({kind, path, std::move(to), std::move(bytes), 0});
}

int RecordingFiles::make_directory(int folder, const std::string& name) {
  const int error = calls_->make_directory(folder, name);
  if (error == 0) note(Kind::make_directory, inside(folder, name));
  return error;
}

int RecordingFiles::create(int folder, const std::string& name) {
  const int descriptor = calls_->create(folder, name);
  if (descriptor >= 0) opened_[descriptor] = inside(folder, name);
  note(Kind::create, inside(folder, name));
  return descriptor;
}

int RecordingFiles::write(int descriptor, std::span<const char> bytes) {
  note(Kind::write, opened_.at(descriptor), "", std::string(bytes.begin(), bytes.end()));
  return calls_->write(descriptor, bytes);
}

int RecordingFiles::sync(int descriptor) {
  note(Kind::sync, opened_.at(descriptor));
  return calls_->sync(descriptor);
}

int RecordingFiles::sync_directory(int folder) {
  note(Kind::sync_directory, inside(folder));
  return calls_->sync_directory(folder);
}

int RecordingFiles::rename(int folder, const std::string& from, const std::string& to) {
  note(Kind::rename, inside(folder, from), inside(folder, to));
  return calls_->rename(folder, from, to);
}

int RecordingFiles::remove_file(int folder, const std::string& name) {
  note(Kind::remove, inside(folder, name));
  return calls_->remove_file(folder, name);
}

int RecordingFiles::remove_directory(int folder, const std::string& name) {
  note(Kind::remove, inside(folder, name));
  return calls_->remove_directory(folder, name);
}

void RecordingFiles::finished(std::int64_t step) { operations_.push_back({Kind::finished, "", "", "", step}); }

CrashDisk::CrashDisk() : nodes_{std::make_shared<Node>()} { nodes_.front()->is_directory = true; }

CrashDisk::NodePtr CrashDisk::find(const std::string& path) const {
  NodePtr node = nodes_.front();
  for (const fs::path& name : fs::path(path)) node = node->entries.at(name.string());
  return node;
}

void CrashDisk::change(const std::string& directory, Change change) {
  const NodePtr node = find(directory);
  if (!change.removed.empty()) node->entries.erase(change.removed);
  if (!change.added.empty()) node->entries[change.added] = change.node;
  node->changes.push_back(std::move(change));
}

CrashDisk::NodePtr CrashDisk::make(const std::string& path, bool is_directory) {
  nodes_.push_back(std::make_shared<Node>());
  nodes_.back()->is_directory = is_directory;
  change(folder_of(path), {"", name_of(path), nodes_.back()});
  return nodes_.back();
}

void CrashDisk::apply(const FileOperation& operation) {
  using Kind = FileOperation::Kind;
  switch (operation.kind) {
    case Kind::make_directory:
    case Kind::create:
      make(operation.path, operation.kind == Kind::make_directory);
      return;
    case Kind::write:
      find(operation.path)->bytes += operation.bytes;
      return;
    case Kind::sync: {
      const NodePtr node = find(operation.path);
      node->sure_bytes = node->bytes;
      return;
    }
    case Kind::sync_directory: {
      const NodePtr node = find(operation.path);
      node->sure_entries = node->entries;
      node->changes.clear();
      return;
    }
    case Kind::rename:
      if (folder_of(operation.path) != folder_of(operation.to)) throw std::logic_error("a rename across folders");
      change(folder_of(operation.path), {name_of(operation.path), name_of(operation.to), find(operation.path)});
      return;
    case Kind::remove:
      change(folder_of(operation.path), {name_of(operation.path), "", nullptr});
      return;
    case Kind::finished:
      return;
  }
}

void CrashDisk::collect(const NodePtr& node, const std::string& path,
                        const std::map<const Node*, std::uint64_t>& choices, DiskContents& contents) const {
  const std::uint64_t choice = choices.at(node.get());
  if (!node->is_directory) {
    std::string bytes = choice % 3 == 0 ? node->sure_bytes : node->bytes;
    // Half of it written: the length may be there before the bytes are.
    if (choice % 3 == 1) bytes.replace(bytes.size() / 2, std::string::npos, bytes.size() - bytes.size() / 2, '\0');
    if (node->bytes == node->sure_bytes) bytes = node->bytes;
    contents[path] = std::move(bytes);
    return;
  }
  std::map<std::string, NodePtr> entries = node->sure_entries;
  for (std::size_t i = 0; i < node->changes.size(); ++i) {
    if (((choice >> i) & 1U) == 0) continue;
    const Change& change = node->changes[i];
    if (!change.removed.empty()) entries.erase(change.removed);
    if (!change.added.empty()) entries[change.added] = change.node;
  }
  for (const auto& [name, entry] : entries) collect(entry, path.empty() ? name : path + "/" + name, choices, contents);
}

void CrashDisk::after_power_failure(std::size_t most, std::uint64_t seed,
                                    const std::function<void(const DiskContents&)>& visit) const {
  std::vector<std::pair<const Node*, std::uint64_t>> ways;  // of each node
  double all = 1;
  for (const NodePtr& node : nodes_) {
    const std::uint64_t own =
        node->is_directory ? std::uint64_t{1} << node->changes.size() : (node->bytes == node->sure_bytes ? 1U : 3U);
    ways.emplace_back(node.get(), own);
    all *= static_cast<double>(own);
  }
  const bool draws = all > static_cast<double>(most);
  std::mt19937_64 random(seed);
  for (std::uint64_t i = 0; i < (draws ? most : static_cast<std::uint64_t>(all)); ++i) {
    std::map<const Node*, std::uint64_t> choices;
    std::uint64_t rest = i;
    for (const auto& [node, own] : ways) {
      choices[node] = (draws ? random() : rest) % own;
      rest /= own;
    }
    DiskContents contents;
    collect(nodes_.front(), "", choices, contents);
    visit(contents);
  }
}

}  // namespace vramfit::testing
