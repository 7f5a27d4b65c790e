#include "phantom/nccl/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "phantom/core/contents.h"
#include "phantom/core/graph.h"
#include "phantom/core/pending.h"
#include "phantom/core/session.h"
#include "phantom/core/trace.h"
#include "phantom/nccl/communicator.h"
#include "phantom/nccl/exchange.h"
#include "phantom/nccl/ghosts.h"

namespace vramfit::phantom {

namespace {

struct Group {
  int depth = 0;
  std::vector<Operation> operations;
  std::vector<std::function<ncclResult_t()>> work;
};

// Never destroyed: communicators are ended by static objects, when the main thread's own objects are gone.
Group& group() {
  thread_local auto* current = new Group;  // NOLINT(cppcoreguidelines-owning-memory)
  return *current;
}

std::array<char, 1024>& error_text() {
  static std::array<char, 1024> text{};
  return text;
}

bool is_small(const Operation& operation) { return operation.total_bytes() <= session().settings.real_bytes; }

// The receive buffer's new contents are nobody's knowledge.
void book(const Operation& operation) {
  if (operation.receive_bytes() > 0) written(operation.receive, operation.receive_bytes(), {.is_known = false});
}

// A communicator of one: the result is the rank's own part.
void copy_own(const Operation& operation) {
  if (operation.scale.empty()) {
    copy(operation.receive, operation.send, operation.part_bytes());
  } else if (is_small(operation)) {
    place(operation, 0, contribution(operation, 0));
  } else {
    book(operation);
  }
}

std::shared_ptr<Exchange> begin(const Operation& operation, std::span<const Operation> together) {
  const Others others = operation.communicator->others();
  if (others == Others::none && !operation.is_pair()) {
    copy_own(operation);
  } else if (!is_small(operation)) {
    book(operation);
  } else if (others == Others::processes) {
    return std::make_shared<Exchange>(operation);
  } else {
    answer_as_ghosts(operation, together);
  }
  return nullptr;
}

ncclResult_t failed(const Operation& operation, ncclResult_t error, const std::string& what) {
  operation.communicator->fail(error);
  if (operation.communicator->aborted()) return refuse(error, what);
  const std::string text = fmt::format("{}: {}", operation.text(), what);
  std::fprintf(stderr, "vramfit phantom: rank %d: %s\n", operation.communicator->rank(), text.c_str());
  return refuse(error, text);
}

template <typename Step>
ncclResult_t guarded(const Operation& operation, const Step& step) {
  try {
    step();
    return ncclSuccess;
  } catch (const InputError& error) {
    return failed(operation, ncclInvalidUsage, error.what());
  } catch (const std::exception& error) {
    return failed(operation, ncclRemoteError, error.what());
  }
}

// What has not come yet is waited for where a program would wait for the stream, or read the result.
void leave_pending(std::shared_ptr<Exchange> exchange) {
  const Operation& operation = exchange->operation();
  PendingWork work{.stream = operation.stream,
                   .card = operation.communicator->card(),
                   .address = operation.receive,
                   .bytes = operation.receive_bytes(),
                   .owner = operation.communicator,
                   .go_on = {}};
  work.go_on = [exchange = std::move(exchange)](bool wait, bool deliver) {
    bool is_done = false;
    const ncclResult_t result = guarded(exchange->operation(), [&] { is_done = exchange->go_on(wait, deliver); });
    if (result != ncclSuccess) return Progress::failed;
    return is_done ? Progress::done : Progress::waiting;
  };
  add_pending(std::move(work));
}

// All sends go out before anything is received: a group may hold them in any order.
ncclResult_t carry_out(std::span<const Operation> operations) {
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (const Operation& operation : operations) {
    if (operation.count == 0) continue;
    trace(call_name(operation.call), operation.communicator->card(), operation.receive, operation.total_bytes());
    const ncclResult_t result = guarded(operation, [&] {
      if (auto exchange = begin(operation, operations)) exchanges.push_back(std::move(exchange));
    });
    if (result != ncclSuccess) return result;
  }
  for (const auto& exchange : exchanges) {
    bool is_done = exchange->is_finished();
    const ncclResult_t result = guarded(exchange->operation(), [&] {
      if (!is_done) is_done = exchange->go_on(false, true);
    });
    if (result != ncclSuccess) return result;
    if (is_done) continue;
    book(exchange->operation());
    leave_pending(exchange);
  }
  return ncclSuccess;
}

ncclResult_t submit_together(std::vector<Operation> operations) {
  if (operations.empty()) return ncclSuccess;
  advance();
  const Stream* const stream = operations.front().stream;
  auto result = std::make_shared<ncclResult_t>(ncclSuccess);
  const Status status = submit(stream, NodeKind::kernel, [result, operations = std::move(operations)] {
    *result = carry_out(operations);
    return Status::success;
  });
  return status == Status::success ? *result : ncclUnhandledCudaError;
}

}  // namespace

ncclResult_t issue(Operation operation) {
  Group& current = group();
  std::vector<Operation> operations{std::move(operation)};
  if (current.depth == 0) return submit_together(std::move(operations));
  current.operations.push_back(std::move(operations.front()));
  return ncclSuccess;
}

ncclResult_t issue(std::function<ncclResult_t()> work) {
  Group& current = group();
  if (current.depth == 0) return work();
  current.work.push_back(std::move(work));
  return ncclSuccess;
}

void start_group() { ++group().depth; }

ncclResult_t end_group() {
  Group& current = group();
  if (current.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--current.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(current, {});
  for (const auto& work : ended.work) {
    const ncclResult_t result = work();
    if (result != ncclSuccess) return result;
  }
  return submit_together(ended.operations);
}

bool drop_group() {
  Group& current = group();
  if (current.depth == 0) return false;
  if (--current.depth == 0) current = {};
  return true;
}

ncclResult_t refuse(ncclResult_t error, std::string_view what) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& text = error_text();
  const std::size_t length = std::min(what.size(), text.size() - 1);
  std::copy_n(what.begin(), length, text.begin());
  text[length] = '\0';
  return error;
}

const char* last_error() { return error_text().data(); }

}  // namespace vramfit::phantom
