// Work of streams that other processes have a part in: small collectives. A program does not wait where it gives such
// work to a stream but where it needs it done, as on a real card: when the host reads or overwrites the result, or
// waits for the stream, the card or an event behind it. So ranks may issue on different communicators in different
// orders.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "phantom/core/status.h"
#include "phantom/core/streams.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

enum class Progress { waiting, done, failed };

struct PendingWork {
  const Stream* stream = nullptr;
  int card = 0;
  const void* address = nullptr;  // what it writes
  std::int64_t bytes = 0;
  const void* owner = nullptr;  // a communicator
  /// Goes on, with `wait` to the end. Without `deliver` the result is not written: something newer is there.
  std::function<Progress(bool wait, bool deliver)> go_on;
};

PHANTOM_CORE void add_pending(PendingWork work);

// Each waits for what it names, and fails with `unknown` when some of it did.
/// What is to be written to these bytes.
PHANTOM_CORE Status settle_memory(const void* address, std::int64_t bytes);
/// The same where the program itself hasn't asked: the next of its calls that waits for it still gets the failure.
Status await_memory(const void* address, std::int64_t bytes);
PHANTOM_CORE Status settle_owner(const void* owner);
/// What a stream, or an event recorded behind it, has to wait for.
Status settle_waits(const void* stream_or_event);
Status settle_card(int card);

/// The same as settle_waits without waiting: not_ready while something is missing.
Status settle_what_came(const void* stream_or_event);

/// A kernel or call was given the pointers, or the memory was freed: results that are still to come there are lost.
void supersede(std::span<const void* const> pointers);
void supersede_range(std::uintptr_t first, std::uintptr_t end);
void supersede_all();

void pending_recorded(const Event* event, const Stream* stream);
void pending_gone(const void* stream_or_event);
/// The stream's later work comes after what the event stands for.
PHANTOM_CORE void wait_for_event(const Stream* stream, const Event* event);

}  // namespace vramfit::phantom
