// The environment that a child is started with.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vramfit {

/// Names and values that are set over what this process has.
using EnvironmentChanges = std::vector<std::pair<std::string, std::string>>;

/// This process's environment with `changes` over it, as "NAME=VALUE".
std::vector<std::string> environment_with(const EnvironmentChanges& changes);

/// A variable of this process, or "" when it is not set.
std::string environment_value(const char* name);

/// As execve takes them: pointers into `texts`, null at the end.
std::vector<char*> pointers_to(std::vector<std::string>& texts);

}  // namespace vramfit
