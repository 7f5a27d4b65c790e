// Where the phantom's libraries are.
#pragma once

#include <string>

namespace vramfit {

/// The folder with libvramfit-phantom-audit.so: $VRAMFIT_PHANTOM_LIB, else ../lib/phantom beside this program's folder.
/// Throws FaultError saying where it looked.
std::string find_phantom_library();

/// The audit library in it, which the dynamic loader is given.
std::string audit_library(const std::string& folder);

}  // namespace vramfit
