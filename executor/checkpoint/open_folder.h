// A directory held open: what is made, renamed and removed in it goes by its descriptor, so that no link planted or
// left behind in the place of an entry is ever followed.
#pragma once

#include <string>
#include <vector>

#include "executor/checkpoint/files.h"

namespace vramfit {

class OpenFolder {
 public:
  /// Opens `path` as the user gave it, links included. Throws FaultError when that can't be done.
  static OpenFolder at(const std::string& path);
  /// The same, and makes it and the directories above it that are missing; each is on the disk before this returns.
  static OpenFolder make(FileCalls& files, const std::string& path);

  ~OpenFolder();
  OpenFolder(OpenFolder&& other) noexcept;
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  OpenFolder& operator=(OpenFolder&&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  /// An entry that is a directory itself; a link in its place throws FaultError.
  OpenFolder open(const std::string& name) const;
  /// Makes the entry `name` first if it is missing, synchronized.
  OpenFolder make_entry(FileCalls& files, const std::string& name) const;

  /// Names of all entries but "." and "..", in no order.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;            // links count, whatever they lead to
  bool has_directory(const std::string& name) const;  // not a link to one

  /// To the disk: the entries, not what they hold.
  void sync(FileCalls& files) const;

 private:
  OpenFolder(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace vramfit
