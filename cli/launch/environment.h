// The environment of a child process.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vramfit {

/// Names and values that override this process's environment.
using EnvironmentChanges = std::vector<std::pair<std::string, std::string>>;

/// This process's environment with `changes` applied, as "NAME=VALUE".
std::vector<std::string> environment_with(const EnvironmentChanges& changes);

/// A variable of this process, or "" when it is not set.
std::string environment_value(const char* name);

/// In the form that execve expects: pointers into `texts`, null at the end.
std::vector<char*> pointers_to(std::vector<std::string>& texts);

}  // namespace vramfit
