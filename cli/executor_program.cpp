#include "cli/executor_program.h"

#include <unistd.h>

#include <filesystem>

namespace vramfit {

std::string find_executor() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const std::string path = self.parent_path() / "vramfit-train";
  return ::access(path.c_str(), X_OK) == 0 ? path : "";
}

}  // namespace vramfit
