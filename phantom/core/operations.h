// Operators of the program, bracketed by an observer that knows their schema (values/). What an operator writes is told
// by the observer afterwards, so the pointers in its launches are not looked at: structures passed by value have unused
// slots, in which pointers of earlier launches are left, and what is known of those tensors would be lost.
#pragma once

#include <cstdint>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// Begins one on this thread; they nest. Copies and fills of up to `real_bytes` are real within it, if
/// that is more than the session's. False, and nothing
/// begun, while a graph is being captured: its launches happen later, without the observer.
PHANTOM_CORE bool begin_operation(std::int64_t real_bytes);
/// Whether it launched kernels or made library calls itself; what nested ones did is theirs.
PHANTOM_CORE bool end_operation();

bool is_in_operation();
/// Notes a launch of the innermost operation; false if there is none on this thread.
bool launch_in_operation();
/// The innermost operation's, or the session's.
std::int64_t real_bytes_here();

/// An operator reads a count that its output's size follows from, or a boolean: the next copy to the host of 1, 4 or 8
/// bytes on this thread gets this one.
PHANTOM_CORE void leave_answer(std::int64_t count);
/// True if there was one that nobody took.
PHANTOM_CORE bool withdraw_answer();
bool take_answer(void* target, std::int64_t bytes);

}  // namespace vramfit::phantom
