#include "phantom/core/operations.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "phantom/core/graph.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

struct Operation {
  std::int64_t real_bytes = 0;
  bool launched = false;
};

struct Thread {
  std::vector<Operation> operations;  // innermost last
  std::optional<std::int64_t> answer;
};

// Never destroyed: static objects launch kernels when their thread is gone.
Thread& thread() {
  thread_local auto* const kThread = new Thread;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kThread;
}

}  // namespace

bool begin_operation(std::int64_t real_bytes) {
  if (is_capturing()) return false;
  thread().operations.push_back({.real_bytes = std::max(real_bytes, session().settings.real_bytes)});
  return true;
}

bool end_operation() {
  const bool launched = thread().operations.back().launched;
  thread().operations.pop_back();
  return launched;
}

bool is_in_operation() { return !thread().operations.empty(); }

bool launch_in_operation() {
  if (!is_in_operation()) return false;
  thread().operations.back().launched = true;
  return true;
}

std::int64_t real_bytes_here() {
  return !is_in_operation() ? session().settings.real_bytes : thread().operations.back().real_bytes;
}

void leave_answer(std::int64_t count) { thread().answer = count; }

bool withdraw_answer() {
  const bool was_left = thread().answer.has_value();
  thread().answer.reset();
  return was_left;
}

bool take_answer(void* target, std::int64_t bytes) {
  const std::optional<std::int64_t> answer = thread().answer;
  if (!answer || (bytes != sizeof(bool) && bytes != sizeof(std::int32_t) && bytes != sizeof(std::int64_t)))
    return false;
  std::memcpy(target, &*answer, static_cast<std::size_t>(bytes));  // the low bytes come first
  thread().answer.reset();
  return true;
}

}  // namespace vramfit::phantom
