// A cgroup of its own for a command and all it starts, where the kernel and the system let this user make one.
#pragma once

#include <optional>
#include <string>

namespace vramfit {

class ControlGroup {
 public:
  /// Below this process's own cgroup (version 2, Linux 5.14 or newer). Nothing when none can be made there, as without
  /// root or a delegated subtree.
  static std::optional<ControlGroup> make();
  ~ControlGroup();
  ControlGroup(ControlGroup&& other) noexcept;
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  ControlGroup& operator=(ControlGroup&&) = delete;

  /// A process that writes "0" there joins, with all that it starts from then on.
  int join_descriptor() const { return join_; }
  /// SIGKILL to all in it at once, so that none can fork its way out.
  void kill_all() const;

 private:
  ControlGroup(std::string path, int join) : path_(std::move(path)), join_(join) {}

  std::string path_;
  int join_;
};

}  // namespace vramfit
