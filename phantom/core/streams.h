// Streams and events. Nothing runs, so a stream is an order of calls, and an event is complete at once, or, with
// `completion=late:SEED`, some calls later.
#pragma once

#include <cstdint>

#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// What cudaStream_t and CUstream point to. Null, 1 and 2 are the default streams and stand for the current card.
struct Stream {
  std::uint64_t id = 0;
  int card = 0;
  unsigned flags = 0;
  int priority = 0;
  void* capture = nullptr;  // the graph being captured, owned by who captures
};

/// What cudaEvent_t and CUevent point to.
struct Event {
  int card = 0;
  unsigned flags = 0;
  bool recorded = false;
  std::uint64_t ready_at = 0;  // the call count at which it is complete
  int period = 0;              // see watchdog.h
};

PHANTOM_CORE Stream* create_stream(int card, unsigned flags, int priority);
PHANTOM_CORE Status destroy_stream(Stream* stream);
/// Default streams, as the handles null, 1 and 2, become the card's own object. Null if it is no stream of ours.
PHANTOM_CORE Stream* stream_of(void* handle, int current_card);

PHANTOM_CORE Event* create_event(int card, unsigned flags);
PHANTOM_CORE Status destroy_event(Event* event);
PHANTOM_CORE Status record_event(Event* event, Stream* stream);
PHANTOM_CORE Status query_event(const Event* event);        // success or not_ready
PHANTOM_CORE Status synchronize_event(const Event* event);  // the host waits: all before it is complete
PHANTOM_CORE Status query_stream(const Stream* stream);
PHANTOM_CORE Status synchronize_stream(const Stream* stream);
PHANTOM_CORE Status synchronize_card(int card);

/// One more call that a card would have worked on: late events come nearer.
PHANTOM_CORE void advance();

}  // namespace vramfit::phantom
