#include "cli/rehearse/processes/phantom_library.h"

#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/launch/environment.h"

namespace vramfit {

std::string audit_library(const std::string& folder) { return folder + "/libvramfit-phantom-audit.so"; }

std::string find_phantom_library() {
  std::error_code error;
  const std::string wanted = environment_value("VRAMFIT_PHANTOM_LIB");
  std::filesystem::path folder = std::filesystem::absolute(wanted, error);
  if (wanted.empty()) {
    folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "lib" / "phantom";
  }
  const std::string path = folder.lexically_normal().string();
  if (::access(audit_library(path).c_str(), R_OK) != 0) {
    throw FaultError(fmt::format("{}: holds no libvramfit-phantom-audit.so; {}", printable(path),
                                 wanted.empty() ? "build it with -DVRAMFIT_PHANTOM=ON, or set VRAMFIT_PHANTOM_LIB"
                                                : "VRAMFIT_PHANTOM_LIB names this folder"));
  }
  // The loader separates audit libraries by colons and has no way to quote one.
  if (path.find(':') != std::string::npos) {
    throw FaultError(fmt::format("{}: a path with a colon can't be given to the loader", printable(path)));
  }
  return path;
}

}  // namespace vramfit
