// Folders in $TMPDIR that live as long as the command that made them.
#pragma once

#include <string>
#include <string_view>

namespace vramfit {

class PrivateFolder {
 public:
  /// $TMPDIR/vramfit-PURPOSE-XXXXXX, for its owner alone, removed with all it holds at the end. Throws FaultError
  /// naming TMPDIR when it can't be made.
  explicit PrivateFolder(std::string_view purpose);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  PrivateFolder(PrivateFolder&&) = delete;
  PrivateFolder& operator=(PrivateFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  bool make(const std::string& pattern);

  std::string path_;
  int descriptor_ = -1;  // locked: whoever sweeps knows by it that the folder is in use
};

/// Removes what commands of this user that were killed left in $TMPDIR; folders in use, and those of others, stay.
void sweep_private_folders();

}  // namespace vramfit
