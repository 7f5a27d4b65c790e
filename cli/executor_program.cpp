#include "cli/executor_program.h"

#include <unistd.h>

#include <filesystem>

namespace vramfit {
namespace {

namespace fs = std::filesystem;

/// Of this program; empty if it can't be told.
fs::path own_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : self.parent_path();
}

}  // namespace

std::string find_executor() {
  const fs::path folder = own_folder();
  if (folder.empty()) return "";
  const fs::path of_package = folder.parent_path().parent_path() / "vramfit_train" / "bin";
  for (const fs::path& each : {folder, of_package}) {
    std::string path = each / "vramfit-train";
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

std::string how_to_get_executor() {
  std::error_code error;
  return fs::exists(own_folder().parent_path() / "__init__.py", error) ? "pip has it as vramfit[train]"
                                                                       : "build it with -DVRAMFIT_EXECUTOR=ON";
}

}  // namespace vramfit
