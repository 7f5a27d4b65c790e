// Hostile variants of a text: what fuzz tests feed to readers.
#pragma once

#include <random>
#include <string>

namespace vramfit::testing {

/// One to four changes: bytes flipped, spans removed or repeated, numbers and values replaced by nasty ones.
/// Deterministic for the state of `random`.
std::string mutate(const std::string& text, std::mt19937_64& random);

}  // namespace vramfit::testing
