// The program that a command names: where it is, and whether the dynamic loader will load our audit library into it.
#pragma once

#include <string>

namespace vramfit {

/// The path of `word`, looked up in PATH when it has no slash. Throws InputError when it isn't there or can't be run.
std::string find_program(const std::string& word);

/// Why the phantom can't reach this program ("is statically linked", "uses the loader ld-musl-x86_64.so.1"), or "".
/// Scripts are judged by their interpreter. Programs started by an unreachable one may still be reachable.
std::string why_out_of_reach(const std::string& path);

}  // namespace vramfit
